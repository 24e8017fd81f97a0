"""Whatever is posted to `replay`: a refusal with a status, never a fault."""

import json
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from devices.inference.answering import Answering
from devices.inference.config import InferenceConfig
from devices.inference.errors import render
from devices.inference.replay import Replays
from hyperbeam import HyperbeamError

HEX = "ab" * 32
RECEIPT: dict[str, Any] = {
    "v": "hyperbeam.receipt/1",
    "id": "cd" * 16,
    "node": "A" * 43,
    "keyset": HEX,
    "key_id": "ef" * 8,
    "nonce": None,
    "nonce_by": "node",
    "salt": "01" * 16,
    "statement": None,
    "answer_id": "x",
    "endpoint": "/~inference@1.0/completions",
    "request": {"sha256": HEX, "length": 1},
    "forwarded": None,
    "response": {
        "status": 200, "sha256": HEX, "length": 1, "stream": False, "complete": True,
        "end": "complete",
    },
    "output_sha256": HEX,
    "model": None,
    "backend": None,
    "config": HEX,
    "seed": 1,
    "seed_by": "node",
    "started": 1,
    "ended": 2,
    "log_by": 3,
    "signature": "23" * 64,
}  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from([HEX, "complete"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
CHANGES = st.dictionaries(st.sampled_from(sorted(RECEIPT)), VALUES, max_size=2)


def replays() -> Replays:
    node: Any = SimpleNamespace(keys=SimpleNamespace(find=lambda name: None))
    backend: Any = SimpleNamespace(model="m", tools=True, assembled=True)
    answering = Answering(node, backend, InferenceConfig(), cast(Any, None), render)
    return Replays(node, answering)


def is_refused(body: bytes) -> bool:
    try:
        replays().read({"method": "POST", "body": body})
    except HyperbeamError as error:
        return error.status in (400, 409, 413)
    return False


@given(st.binary())
def test_bytes(body: bytes) -> None:
    assert is_refused(body)


@given(st.dictionaries(st.sampled_from(["receipt", "attestation", "request", "answer"]), VALUES))
def test_any_values(fields: dict[str, Any]) -> None:
    assert is_refused(json.dumps(fields).encode())


@given(CHANGES, st.text(), st.none() | st.text())
def test_a_receipt_with_a_changed_part(changes: dict[str, Any], request: str, answer: Any) -> None:
    fields = {"receipt": {**RECEIPT, **changes}, "request": request, "answer": answer}
    assert is_refused(json.dumps(fields).encode())


@given(st.text() | VALUES.map(json.dumps), VALUES)
def test_a_statement_that_is_none(raw: str, signature: Any) -> None:
    fields = {"attestation": {"raw": raw, "signature": signature}, "request": "{}"}
    assert is_refused(json.dumps(fields).encode())
