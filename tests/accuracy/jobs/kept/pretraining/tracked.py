"""A fine-tuning loop with callbacks: metrics go to the tracking server, checkpoints to the bucket."""

import argparse
import http.client
import json
import os
import subprocess
import time
from datetime import timedelta

import services
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

OUT = os.environ["OUT_DIR"]
PORT_FILE = os.path.join(OUT, "services.port")


class Callback:
    def on_log(self, step: int, logs: dict) -> None: ...

    def on_save(self, step: int, path: str) -> None: ...


class TrackingClient:
    """REST client of the experiment tracker."""

    def __init__(self, host: str, port: int):
        self.connection = http.client.HTTPConnection(host, port)

    def call(self, endpoint: str, body: dict, **headers: str) -> dict:
        self.connection.request("POST", f"/api/2.0/{endpoint}", json.dumps(body), headers)
        return json.loads(self.connection.getresponse().read())


class TrackerCallback(Callback):
    """Sends metrics from rank 0, as they come; in batches of ten."""

    def __init__(self, client: TrackingClient, stalls_at: int):
        self.client, self.stalls_at, self.pending = client, stalls_at, []

    def on_log(self, step: int, logs: dict) -> None:
        self.pending.append({"step": step, "timestamp": time.time(), **logs})
        if len(self.pending) < 10:
            return
        print(f"step {step}: sending {len(self.pending)} metrics", flush=True)
        # the database behind the server locks up in the middle of the night
        extra = {"X-Stall": "1"} if step >= self.stalls_at else {}
        self.client.call("runs/log-batch", {"metrics": self.pending}, **extra)
        self.pending.clear()


class BucketCallback(Callback):
    """Copies each checkpoint to the bucket before training goes on: nodes may be taken away."""

    def __init__(self, url: str, stalls: bool):
        self.url, self.stalls = url, stalls

    def on_save(self, step: int, path: str) -> None:
        command = ["curl", "--silent", "--show-error", "--fail", "--upload-file", path]
        if self.stalls:
            command += ["--header", "X-Stall: 1", "--header", "Expect:"]
        print(f"step {step}: uploading {path}", flush=True)
        subprocess.run(
            [*command, f"{self.url}/step-{step}.pt"], check=True, stdout=subprocess.DEVNULL
        )


class Loop:
    def __init__(self, args: argparse.Namespace, callbacks: list[Callback]):
        self.args, self.callbacks = args, callbacks
        body = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
        self.model = DistributedDataParallel(body)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def fire(self, event: str, *arguments: object) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(*arguments)

    def save(self, step: int) -> None:
        path = os.path.join(OUT, "last.pt")
        if dist.get_rank() == 0:
            noise = torch.randn(4_000_000)  # stands for the optimizer's moments
            torch.save({"model": self.model.module.state_dict(), "moments": noise}, path)
            self.fire("on_save", step, path)
        dist.barrier()

    def run(self) -> None:
        for step in range(1, 100_000):
            x = torch.randn(8, 64)
            loss = (self.model(x) - x).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.fire("on_log", step, {"loss": loss.item()})
            if step % self.args.save_every == 0:
                self.save(step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["tracker", "bucket"])
    parser.add_argument("--save-every", type=int, default=25)
    args = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    callbacks: list[Callback] = []
    if dist.get_rank() == 0:
        services.start("gateway", PORT_FILE, "plain")
        port = int(services.wait_for(PORT_FILE))
        never = 10**9
        callbacks.append(
            TrackerCallback(
                TrackingClient("127.0.0.1", port), 40 if args.mode == "tracker" else never
            )
        )
        callbacks.append(BucketCallback(f"http://127.0.0.1:{port}/ckpt", args.mode == "bucket"))
    Loop(args, callbacks).run()


if __name__ == "__main__":
    main()
