"""Keys and tokens of single makers are masked wherever they stand; words that begin alike stay."""

from __future__ import annotations

import random
import string

import pytest

from hangtop_probe.secrets.mask import MASK, mask_arguments, mask_name, mask_text

LETTERS = string.ascii_letters + string.digits
LOWER = string.ascii_lowercase + string.digits
UPPER = string.ascii_uppercase + string.digits
HEX = "0123456789abcdef"
WORD = LETTERS + "-_"

MAKERS = {
    "RunPod": ("rp", "a_", UPPER, 38),
    "Prefect user": ("pn", "u_", LETTERS, 36),
    "Prefect service": ("pn", "b_", LETTERS, 36),
    "CircleCI": ("CCI", "PAT_", LETTERS, 22, "_", HEX, 40),
    "CircleCI project": ("CCI", "PRJ_", LETTERS, 22, "_", HEX, 40),
    "Buildkite": ("bk", "ua_", LOWER, 40),
    "Airtable": ("pa", "t", LETTERS, 14, ".", HEX, 64),
    "HubSpot": ("pat-", "na1", "-", HEX, 8, *("-", HEX, 4) * 3, "-", HEX, 12),
    "HubSpot Europe": ("pat-", "eu1", "-", HEX, 8, *("-", HEX, 4) * 3, "-", HEX, 12),
    "Mapbox": ("sk.ey", "J1Ijoi", LETTERS, 60, ".", WORD, 22),
    "Mapbox public": ("pk.ey", "J1Ijoi", LETTERS, 60, ".", WORD, 22),
    "Heroku": ("HRKU", "-AA", WORD, 58),
    "Google, new": ("A", "Q.", "Ab8RN6", WORD, 44),
    "Tavily": ("tv", "ly-", LETTERS, 32),
    "Tavily, development": ("tv", "ly-dev-", LETTERS, 32),
    "Dropbox": ("s", "l.", WORD, 130),
    "Dropbox, new": ("s", "l.u.", WORD, 140),
    "Discord": ("M", "T", LETTERS, 24, ".", WORD, 6, ".", WORD, 38),
    "Modal id": ("a", "k-", LETTERS, 22),
    "Modal secret": ("a", "s-", LETTERS, 22),
    "Modal proxy": ("w", "s-", LETTERS, 22),
    "Fireworks": ("f", "w_", LETTERS, 22),
    "Jina": ("ji", "na_", HEX, 32, LETTERS, 28),
    "Fly": ("fm", "2_", LETTERS + "+/", 200),
    "Fly, older": ("fo", "1_", WORD, 43),
    "Sentry user": ("snt", "ryu_", HEX, 64),
    "Sentry organisation": ("snt", "rys_", "eyJpYXQiOjE3", LETTERS, 80, "_", LETTERS, 43),
    "Render": ("rn", "d_", LETTERS, 28),
    "Supabase": ("sb_", "secret_", WORD, 31),
    "Neon": ("np", "g_", LETTERS, 24),
    "Kaggle": ("KG", "AT_", HEX, 32),
    "PlanetScale": ("pscale", "_pw_", WORD, 43),
    "Contentful": ("CF", "PAT-", WORD, 43),
    "Typeform": ("tf", "p_", LETTERS, 44),
    "Honeycomb": ("hc", "aik_", LOWER, 58),
    "SonarQube": ("sq", "u_", HEX, 40),
    "Sourcegraph": ("sg", "p_", HEX, 40),
    "Square": ("sq0", "atp-", WORD, 22),
    "GitLab agent": ("gl", "agent-", WORD, 50),
    "OpenShift": ("sha", "256~", WORD, 43),
    "Bedrock": ("AB", "SK", LETTERS, 120),
    "1Password": ("ops_", "eyJ", LETTERS, 260),
    "Neptune": ("ey", "JhcGlfYWRkcmVzcyI6", LETTERS, 90),
    "Databricks secret": ("do", "se", HEX, 32),
    "Twilio": ("S", "K", HEX, 32),
    "Mailchimp": ("", "", HEX, 32, "-us", "12"),
    "Telegram": ("", "", string.digits, 10, ":AAH", WORD, 32),
    "unknown, with a prefix": ("acme", "_", LETTERS, 40),
    "unknown, with two": ("acme", "_live_", LETTERS, 36),
}
"""Beginnings, and with each how many of which characters follow; none is written here whole."""

FORMS = ("{}", "using {} now", "x={}", "'{}'", "f({}, 3)", '{{"a": "{}"}}', "tried {}.", "{}:x")


def drawn(maker: str, rnd: random.Random) -> str:
    parts = list(MAKERS[maker])
    text = ""
    while parts:
        part = str(parts.pop(0))
        count = parts.pop(0) if parts and isinstance(parts[0], int) else None
        text += part if count is None else "".join(rnd.choices(part, k=int(str(count))))
    return text


@pytest.mark.parametrize("maker", MAKERS)
def test_a_key_is_known_by_its_form(maker: str) -> None:
    rnd = random.Random(7)
    keys = [drawn(maker, rnd) for _ in range(12)]
    few = 3 if maker.startswith("unknown") else 0
    for form in FORMS:
        shown = [key for key in keys if key[-12:] in mask_text(form.format(key))]
        assert len(shown) <= few, (form, shown, "of an unknown maker some look like words")


@pytest.mark.parametrize("maker", MAKERS)
def test_a_key_is_known_as_an_argument(maker: str) -> None:
    key = drawn(maker, random.Random(7))
    assert key[-12:] not in " ".join(mask_arguments(["run", "--x", key, f"--y={key}"]))


@pytest.mark.parametrize(
    "text",
    [
        "fw_compiler_static_partition_12, napi_schedule_complete_irq_17, aio_read_events_ring_20",
        "re_compute_forward_activations_2, pa-decode-prefill-worker-12345, as-requested-by-node-4",
        "jina_embeddings_v3_base_model_12, pat_layer_12_attention, sl.layers.0.attn.qkv.weight",
        "torch_compile_9fceb02d0ae598e95dc970b74767f193, triton_poi_fused_native_layer_norm_17",
        "cri-containerd-9fceb02d0ae598e95dc970b74767f19372d61af8c1e3a5b7d9f0123456789abc.scope",
        "run-20261123_041207-k3x9b2m1, ray::RolloutWorker.sample_batch_17, wandb-osh-pending",
        "APACHE2_LICENSE_NOTICE, AP-SOUTHEAST-1, EAAccessController, SKIPPED_TESTS_OF_RANK_3",
        "NCCL_ALGO, ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "_ZN5torch8autograd6Engine11thread_mainERKSt10shared_ptrINS0_9GraphTaskEE",
        "checkpoint_step_100000_epoch_12_best, 2026-11-28T04:12:07.123456Z, 3f9c2a1b-node-17",
        "llm-d-decode-7c9f8b6d5-x2k4q, trainer-worker-0.trainer.ml-team.svc.cluster.local",
    ],
)
def test_words_that_begin_alike_stay(text: str) -> None:
    assert mask_text(text) == text


@pytest.mark.parametrize("start", ["h" + "f_", "s" + "k-", "gh" + "p_", "AK" + "IA", "rp" + "a_"])
def test_of_a_name_that_the_kernel_has_cut_no_part_is_left(start: str) -> None:
    assert mask_name((start + "a1B2c3D4e5F6g7H8")[:15]) == MASK


@pytest.mark.parametrize(
    "name",
    ["pt_main_thread", "hf_transfer_wor", "cuda-EvtHandlr", "kworker/3:1-eve", "ThreadPoolExecu"],
)
def test_names_of_threads_stay(name: str) -> None:
    assert mask_name(name) == name
