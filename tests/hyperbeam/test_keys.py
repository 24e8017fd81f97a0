import json
import logging
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hyperbeam import Unavailable
from hyperbeam import keys as module
from hyperbeam.keys import DAY, AdoptedKeys, Keys, LiveKeySet
from hyperbeam.verify import signing
from hyperbeam.verify.keyset import KeySet

GPU = {"cc": True, "devtools": False, "ueids": ["11"]}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return opened(tmp_path)


def opened(home: Path) -> Keys:
    keys = Keys(home)
    keys.open()
    return keys


def files(home: Path) -> set[str]:
    return {path.stem for path in (home / "keysets").glob("*.json")}


class Clock:
    """The time that the module sees, in ms."""

    def __init__(self) -> None:
        self.now = time.time_ns() // 1_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "_now", clock)
    return clock


def test_a_key_set_is_what_verifiers_read(keys: Keys, tmp_path: Path) -> None:
    keys.set_gpu(GPU)
    keys.set_code("ab" * 48)
    live = keys.current
    parsed = KeySet.parse(live.message)
    assert parsed.name == live.name
    assert parsed.node == live.node == keys.identity.address
    assert (live.message["gpu"], live.message["code"]) == (GPU, "ab" * 48)
    assert live.message["config"] == live.config
    assert live.message["previous"] is None
    assert parsed.lives_at(time.time_ns() // 1_000_000)
    kept = tmp_path / "keysets" / f"{live.name}.json"
    assert KeySet.parse(kept.read_bytes()).name == live.name
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_signatures(keys: Keys) -> None:
    live = keys.current
    parsed = KeySet.parse(live.message)
    answer = live.sign_answer(b"raw")
    key = parsed.receipt_key(answer["key_id"])
    assert key == live.receipt_public
    assert signing.check(key, signing.ANSWER, b"raw", bytes.fromhex(answer["value"]))
    assert not signing.check(key, signing.RECEIPT, b"raw", bytes.fromhex(answer["value"]))
    key_id, value = live.sign_receipt(b"receipt")
    assert key_id == answer["key_id"] == live.receipt_key_id
    assert signing.check(key, signing.RECEIPT, b"receipt", bytes.fromhex(value))
    log_key = parsed.log_key(live.log_key_id)
    assert log_key == live.log_public != key
    assert log_key is not None
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    Ed25519PublicKey.from_public_bytes(log_key).verify(live.sign_log(b"head"), b"head")


def test_no_private_key_reaches_the_disk_or_the_message(keys: Keys, tmp_path: Path) -> None:
    live = keys.current
    assert live._log_key is not None
    secrets = [live._receipt_key.private_bytes_raw(), live._log_key.private_bytes_raw()]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    written += json.dumps(live.message).encode() + repr(vars(live)).encode()
    for secret in secrets:
        assert secret not in written
        assert secret.hex().encode() not in written


def test_a_start_makes_one_key_set(keys: Keys, tmp_path: Path) -> None:
    keys.set_node({"config": {"a": 1}})
    keys.declare("inference@1.0", {"slots": 4})
    keys.set_gpu(GPU)
    assert not (tmp_path / "keysets").exists()
    first = keys.current
    assert keys.current is first
    assert files(tmp_path) == {first.name}


@pytest.mark.parametrize(
    "change",
    [
        lambda keys: keys.set_node({"config": {"a": 2}}),
        lambda keys: keys.declare("inference@1.0", {"slots": 5}),
        lambda keys: keys.declare("inference@1.0", {"slots": True}),
        lambda keys: keys.declare("inference@1.0", None),
        lambda keys: keys.declare("other@1.0", {}),
        lambda keys: keys.set_gpu(None),
        lambda keys: keys.set_gpu({**GPU, "cc": False}),
        lambda keys: keys.set_code("00"),
    ],
)
def test_a_change_makes_the_next_before_it_returns(keys: Keys, tmp_path: Path, change: Any) -> None:
    def same() -> None:
        keys.set_node({"config": {"a": 1}})
        keys.declare("inference@1.0", {"slots": 1, "context": 2.5, "flags": ("-x",)})
        keys.set_gpu(GPU)
        keys.set_code(None)

    same()
    first = keys.current
    same()
    assert keys.current is first
    change(keys)
    assert len(files(tmp_path)) == 2
    second = keys.current
    assert second.message["previous"] == first.name
    assert second.receipt_public != first.receipt_public
    gpu_or_code = (second.message["gpu"], second.message["code"]) != (GPU, None)
    assert (second.config != first.config) is not gpu_or_code
    assert signing.check(
        first.receipt_public, signing.ANSWER, b"", bytes.fromhex(first.sign_answer(b"")["value"])
    )


def test_the_same_settings_give_the_same_digest(tmp_path: Path) -> None:
    digests = set()
    for _ in range(2):
        keys = opened(tmp_path)
        keys.declare("b", {"y": 0.5, "x": [1, None]})
        keys.declare("a", {})
        digests.add(keys.current.config)
    assert len(digests) == 1
    assert len(files(tmp_path)) == 2


def test_the_next_run_names_the_last(tmp_path: Path) -> None:
    names: list[str | None] = [None]
    for _ in range(3):
        keys = opened(tmp_path)
        assert keys.current.message["previous"] == names[-1]
        names.append(keys.current.name)
    for name in names[1:]:
        assert name is not None
        found = keys.find(name)
        assert found is not None
        assert KeySet.parse(found).name == name


def test_another_nodes_key_sets_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    other = opened(tmp_path / "a").current
    (tmp_path / "keysets").mkdir()
    path = tmp_path / "keysets" / f"{other.name}.json"
    path.write_text(json.dumps(other.message, sort_keys=True, separators=(",", ":")))
    keys = opened(tmp_path)
    assert keys.current.message["previous"] is None
    assert keys.find(other.name) == other.message


def test_a_key_set_gives_way_before_it_ends(keys: Keys, clock: Clock) -> None:
    first = keys.current
    assert first.not_after - first.not_before == 7 * DAY
    clock.now = first.not_after - DAY - 1
    assert keys.current is first
    clock.now += 1
    second = keys.current
    assert second.message["previous"] == first.name
    assert second.not_after == clock.now - module.SLACK + 7 * DAY
    assert keys.current is second
    clock.now = second.not_before - 1
    assert keys.current.not_before < second.not_before


def test_threads_make_one(keys: Keys, tmp_path: Path) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(keys.current.name)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert files(tmp_path) == set(found)


@pytest.mark.parametrize(
    "name",
    ["", "x", "../identity", "A" * 64, "a" * 63, "a" * 64 + "\n", "a" * 64, "../" + "a" * 61],
)
def test_names_that_are_not_known(keys: Keys, name: str) -> None:
    assert keys.current
    assert keys.find(name) is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"v":1}', None])
def test_a_damaged_file_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes | None
) -> None:
    first, second = opened(tmp_path).current, opened(tmp_path).current
    path = tmp_path / "keysets" / f"{second.name}.json"
    path.write_bytes(path.read_bytes().replace(b'"cc', b'"CC') if data is None else data)
    if data is None:
        path.write_bytes(path.read_bytes().replace(b'"code":null', b'"code":"00"'))
    keys = opened(tmp_path)
    assert keys.find(second.name) is None
    assert keys.current.message["previous"] == first.name
    assert second.name in caplog.text


def test_old_key_sets_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "KEEP_COUNT", 3)
    names = [opened(tmp_path).current.name for _ in range(5)]
    assert files(tmp_path) == set(names[-3:])
    past = time.time() - 367 * 86_400
    os.utime(tmp_path / "keysets" / f"{names[-1]}.json", (past, past))
    last = opened(tmp_path).current.name
    assert files(tmp_path) == {names[-2], names[-3], last}


def test_a_key_set_that_cannot_be_kept_still_signs(
    keys: Keys, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "keysets").write_text("in the way")
    with caplog.at_level(logging.ERROR, "hyperbeam.keys"):
        first = keys.current
        keys.set_gpu(GPU)
    assert keys.current is not first
    assert keys.find(first.name) == first.message
    assert "cannot be kept" in caplog.text


def test_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="before it starts"):
        _ = Keys(tmp_path).identity


def test_a_lost_identity_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for lost in (False, True):
        keys = Keys(tmp_path)
        keys.open()
        assert keys.current.node == keys.identity.address
        assert ("identity key of this home was gone" in caplog.text) is lost
        (tmp_path / "identity.key").unlink()


def test_who_follows_the_keys_hears_of_each_before_it_counts(keys: Keys) -> None:
    heard: list[str] = []

    def changed(live: LiveKeySet) -> None:
        assert not heard or keys.current.name == heard[-1]
        heard.append(live.name)

    keys.changed = changed
    first = keys.current.name
    keys.declare("inference@1.0", {"slots": 4})
    keys.declare("inference@1.0", {"slots": 4})
    assert heard == [first, keys.current.name]


def test_a_prepared_key_set_takes_effect_with_its_facts(keys: Keys) -> None:
    facts: dict[str, Any] = {"config": {"a": 1}}
    keys.set_node({"config": {}})
    before = keys.current
    assert keys.prepare({"config": {}}) is before
    prepared = keys.prepare(facts)
    assert keys.current is before
    assert prepared.message["previous"] == before.name
    keys.set_node(facts)
    assert keys.current is prepared

    stale = keys.prepare({"config": {"b": 1}})
    keys.declare("inference@1.0", {"slots": 4})
    keys.set_node({"config": {"b": 1}})
    assert keys.current is not stale
    assert keys.current.config not in (stale.config, prepared.config)


def test_a_worker_signs_with_the_keys_it_is_handed(
    keys: Keys, tmp_path: Path, clock: Clock
) -> None:
    live = keys.current
    adopted = AdoptedKeys(tmp_path)
    adopted.open()
    with pytest.raises(Unavailable):
        _ = adopted.current
    adopted.adopt(LiveKeySet.adopt(live.handed()))
    adopted.declare("inference@1.0", {"slots": 4})
    mine = adopted.current
    assert (mine.name, mine.message) == (live.name, live.message)
    assert adopted.identity.address == keys.identity.address
    assert mine.sign_answer(b"raw") == live.sign_answer(b"raw")
    assert adopted.find(live.name) == live.message
    with pytest.raises(RuntimeError):
        mine.sign_log(b"head")
    with pytest.raises(RuntimeError):
        adopted.identity.sign(signing.KEYSET, b"a key set")
    clock.now += 7 * DAY
    with pytest.raises(Unavailable):
        _ = adopted.current
    renewed = keys.current
    adopted.adopt(LiveKeySet.adopt(renewed.handed()))
    assert adopted.current.name == renewed.name
    assert adopted.find(live.name) == live.message
