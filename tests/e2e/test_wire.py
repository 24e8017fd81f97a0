"""What an upstream node answers, this one does too, or says why not."""

import json

from .wire import FIXTURES, outcomes


def test_every_row_agrees_or_has_a_reason() -> None:
    found = outcomes()
    wrong = [
        (one.row["id"], one.row["what"], one.word, one.differs)
        for one in found
        if one.word in ("differs", "fault here too")
    ]
    assert not wrong
    ours = json.loads((FIXTURES / "ours.json").read_text())
    assert ours.keys() == {str(one.row["id"]) for one in found if one.word == "on purpose"}
