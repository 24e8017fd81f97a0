import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from devices.receipt_log.cosignatures import KEPT, RECENT, Cosignatures
from devices.receipt_log.logs import Logs
from hyperbeam import BadRequest, Forbidden, HyperbeamError
from hyperbeam.verify import checkpoint as notes
from hyperbeam.verify.checkpoint import COSIGNATURE, Checkpoint, Signature, VerifierKey
from hyperbeam.verify.checks import Malformed

from .logs import head, leaf, opened


class Witness:
    """A witness that cosigns whatever it is given."""

    def __init__(self, name: str) -> None:
        self._key = Ed25519PrivateKey.generate()
        self.key = VerifierKey(name, COSIGNATURE, self._key.public_key().public_bytes_raw())

    def cosign(self, of: Checkpoint, at: int | None = None) -> Signature:
        at = int(time.time()) if at is None else at
        message = notes.cosigned_message(of, at)
        value = at.to_bytes(8, "big") + self._key.sign(message)
        return Signature(self.key.name, self.key.id, value)


ONE, TWO, STRANGER = Witness("one.example/w"), Witness("two.example/w"), Witness("else.example")


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    logs = opened(tmp_path / "log")
    logs.add([leaf(number) for number in range(5)])
    yield logs
    logs.close()


@pytest.fixture
def kept(logs: Logs) -> Cosignatures:
    return Cosignatures(logs.live.folder, [ONE.key, TWO.key])


def note(logs: Logs, *signatures: Signature) -> bytes:
    signed = head(logs)
    return replace(signed, signatures=(*signed.signatures, *signatures)).text().encode()


def now(logs: Logs) -> Checkpoint:
    return head(logs).checkpoint


def test_a_cosigned_checkpoint_is_taken(logs: Logs, kept: Cosignatures) -> None:
    one = ONE.cosign(now(logs), 1000)
    accepted = kept.take(note(logs, STRANGER.cosign(now(logs)), one), logs.live)
    assert (accepted.size, accepted.witnesses) == (5, (("one.example/w", 1000),))
    assert kept.of(5) == (one,)
    assert kept.of(4) == ()
    assert kept.newest() == 5


def test_an_older_head_of_this_log_is_taken(logs: Logs, kept: Cosignatures) -> None:
    text = note(logs, ONE.cosign(now(logs)), TWO.cosign(now(logs)))
    logs.add([leaf(5)])
    assert kept.take(text, logs.live).size == 5
    assert len(kept.of(5)) == 2


def test_bare_lines_over_a_head_that_was_shown(logs: Logs, kept: Cosignatures) -> None:
    line = ONE.cosign(now(logs)).line().encode()
    with pytest.raises(HyperbeamError) as raised:
        kept.take(line, logs.live)
    assert (raised.value.status, raised.value.error) == (409, "head_unknown")
    kept.shown(5)
    kept.shown(3)
    assert kept.take(line, logs.live).size == 5
    for size in range(RECENT):
        kept.shown(10 + size)
    logs.add([leaf(10 + number) for number in range(20)])
    with pytest.raises(HyperbeamError) as raised:
        kept.take(line, logs.live)
    assert raised.value.status == 409


def test_strangers_are_refused(logs: Logs, kept: Cosignatures) -> None:
    same_name = Witness(ONE.key.name)
    kept.shown(5)
    for each in (STRANGER, same_name):
        signature = each.cosign(now(logs))
        for text in (note(logs, signature), signature.line().encode()):
            with pytest.raises(Forbidden):
                kept.take(text, logs.live)
    with pytest.raises(Forbidden):
        kept.take(note(logs), logs.live)
    assert kept.newest() is None


def test_heads_of_another_history_are_refused(logs: Logs, kept: Cosignatures) -> None:
    good = now(logs)
    for other in (
        replace(good, root=b"\1" * 32),
        replace(good, size=4),
        replace(good, size=6),
        replace(good, size=2**62),
        replace(good, origin=good.origin + "/" + "0" * 16),
    ):
        signed = notes.SignedCheckpoint(other, (ONE.cosign(other),))
        with pytest.raises(HyperbeamError) as raised:
            kept.take(signed.text().encode(), logs.live)
        assert (raised.value.status, raised.value.error) == (409, "head_unknown")
    assert kept.newest() is None


def test_signatures_that_do_not_hold_are_refused(logs: Logs, kept: Cosignatures) -> None:
    good = ONE.cosign(now(logs))
    for bad in (
        replace(good, value=good.value[:-1] + bytes([good.value[-1] ^ 1])),
        replace(good, value=good.value[:-1]),
        replace(good, value=good.value[8:]),
        ONE.cosign(replace(now(logs), size=4)),
        ONE.cosign(now(logs), int(time.time()) + 3600),
    ):
        with pytest.raises(BadRequest) as raised:
            kept.take(note(logs, bad), logs.live)
        assert raised.value.error == "cosignature_invalid"
        with pytest.raises(BadRequest):
            kept.take(note(logs, TWO.cosign(now(logs)), bad), logs.live)
    assert kept.newest() is None


@pytest.mark.parametrize(
    "text", [b"\0", b"\xff", b"a\n\nb", b"\n\n", "— a b\n".encode(), b"x" * 70000]
)
def test_what_is_no_cosignature(text: bytes, logs: Logs, kept: Cosignatures) -> None:
    with pytest.raises(Malformed):
        kept.take(text, logs.live)


def test_the_latest_of_a_witness_stays(logs: Logs, kept: Cosignatures) -> None:
    newer, older = ONE.cosign(now(logs), 2000), ONE.cosign(now(logs), 1000)
    kept.take(note(logs, newer), logs.live)
    kept.take(note(logs, older), logs.live)
    assert kept.of(5) == (newer,)


def test_they_outlive_the_node(logs: Logs, kept: Cosignatures) -> None:
    one, two = ONE.cosign(now(logs)), TWO.cosign(now(logs))
    kept.take(note(logs, one, two), logs.live)
    again = Cosignatures(logs.live.folder, [TWO.key])
    assert again.of(5) == (two,)
    (logs.live.folder / "cosignatures.json").write_text(json.dumps({"a": "b", "c": 7}))
    assert Cosignatures(logs.live.folder, [TWO.key]).newest() is None


def test_only_the_largest_are_kept(logs: Logs, kept: Cosignatures) -> None:
    for number in range(KEPT + 5):
        logs.add([leaf(100 + number)])
        kept.take(note(logs, ONE.cosign(now(logs))), logs.live)
    assert kept.newest() == 5 + KEPT + 5
    assert kept.of(10) == ()
    assert len(kept.of(11)) == 1
