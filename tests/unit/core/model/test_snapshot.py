"""What is written as JSON is read back, and acts on no terminal."""

from __future__ import annotations

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from hangtop_core.diagnosis import to_json
from hangtop_core.model.snapshot import Failure


@given(st.text() | st.text(st.characters(categories=["Cc", "Cf", "Cs", "Co"])))
def test_json_keeps_every_character_and_none_of_them_acts_on_a_terminal(text: str) -> None:
    written = to_json(Failure("error", text)).decode()
    # Two lone surrogates that stand together are one character in JSON.
    paired = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    assert json.loads(written)["text"] == paired
    kinds = {unicodedata.category(char) for char in written if char != "\n"}
    assert kinds.isdisjoint({"Cc", "Cf", "Cs", "Co"})


def test_json_shows_letters_as_they_are() -> None:
    assert "日本 Größe" in to_json(Failure("error", "日本 Größe")).decode()
