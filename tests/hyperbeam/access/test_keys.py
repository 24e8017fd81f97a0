import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam.access import Access, KeyStore, Quota
from hyperbeam.access.proxies import Proxies
from hyperbeam.config import AccessConfig
from hyperbeam.errors import ConfigError, Forbidden, HyperbeamError, Unauthorized
from hyperbeam.message import Message
from hyperbeam.receipt_file import ReceiptFile
from hyperbeam.serve.counters import LocalCounters
from hyperbeam.store import LMDBStore, MemoryStore


def asking(secret: str = "", header: str = "authorization") -> Message:
    headers = {}
    if secret:
        headers[header] = f"Bearer {secret}" if header == "authorization" else secret
    return {"priv": {"target": "/x", "client": "10.0.0.1", "headers": headers}}


def access(store: MemoryStore, required: Any = "auto") -> Access:
    return Access(AccessConfig(required=required), store, LocalCounters())


def test_without_keys_everybody_may_and_counts_by_address() -> None:
    grant = access(MemoryStore()).check(asking())
    assert (grant.id, grant.client, grant.headers) == ("", "10.0.0.1", {})
    with pytest.raises(Unauthorized):
        access(MemoryStore(), "always").check(asking())


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_a_key_lets_in_and_nothing_else_does(header: str) -> None:
    store = MemoryStore()
    secret, key = KeyStore(store).add("ada")
    doors = access(store)
    assert doors.check(asking(secret, header)).id == key.id
    for wrong in ("", secret[:-1], secret + "x", key.id, "ada", "\ud800", secret.upper()):
        with pytest.raises(Unauthorized) as refused:
            doors.check(asking(wrong, header))
        assert refused.value.headers["www-authenticate"] == "Bearer"
    assert doors.check({"path": "x"}).id == ""  # a device of the node's own


def test_the_store_has_no_secret() -> None:
    store = MemoryStore()
    secret, key = KeyStore(store).add("ada")
    names = store.list(b"access/keys") or []
    values = [store.read(b"access/keys/" + name) or b"" for name in names]
    assert len(names) == 1
    assert not any(secret.encode() in data or secret[3:20].encode() in data for data in values)
    assert secret.startswith("hb-") and len(secret) > 40 and key.id not in secret


def test_a_revoked_key_and_one_past_its_time() -> None:
    store = MemoryStore()
    keys = KeyStore(store)
    gone, _ = keys.add("gone")
    keys.revoke("gone")
    old, _ = keys.add("old", expires=int(time.time()) - 1)
    for secret, said in ((gone, "revoked"), (old, "over")):
        with pytest.raises(Unauthorized, match=said):
            access(store).check(asking(secret))
    with pytest.raises(Unauthorized):  # the last key's end does not open the node
        access(store).check(asking())
    with pytest.raises(ConfigError, match="gone"):
        keys.revoke("gone")


def test_models() -> None:
    store = MemoryStore()
    secret, _ = KeyStore(store).add("ada", models=("small", "a/b"))
    grant = access(store).check(asking(secret))
    grant.require_model("a/b")
    for other in ("large", "", "SMALL"):
        with pytest.raises(Forbidden) as refused:
            grant.require_model(other)
        assert refused.value.error == "model_not_allowed"


def test_limits_count_over_all_and_last_over_a_restart() -> None:
    store = MemoryStore()
    secret, _ = KeyStore(store).add("a", requests=Quota(3, 86400), tokens=Quota(100, 86400))
    doors = access(store)
    left = [doors.check(asking(secret)).headers["x-ratelimit-remaining-requests"] for _ in range(3)]
    assert left == ["2", "1", "0"]
    with pytest.raises(HyperbeamError) as refused:
        doors.check(asking(secret))
    assert (refused.value.status, refused.value.error) == (429, "rate_limit_exceeded")
    assert 0 < int(refused.value.headers["retry-after"]) <= 86400
    doors.save()
    again = access(store)
    again.restore()
    with pytest.raises(HyperbeamError, match="3 requests"):
        again.check(asking(secret))

    other, _ = KeyStore(store).add("b", tokens=Quota(100, 86400))
    grant = again.check(asking(other))
    assert grant.headers["x-ratelimit-remaining-tokens"] == "100"
    grant.used(150)
    with pytest.raises(HyperbeamError, match="100 tokens"):
        again.check(asking(other))
    again.grant_of(asking(other))


@pytest.mark.parametrize(
    "text", ["", "60", "0/min", "60/fortnight", "-1/s", "1e3/s", "5000000000/s"]
)
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(ConfigError, match="60/min"):
        Quota.parse(text)


@given(st.integers(1, 2**32 - 1), st.sampled_from(["s", "min", "h", "day"]))
def test_limits_are_written_as_they_are_read(count: int, period: str) -> None:
    assert str(Quota.parse(f"{count}/{period}")) == f"{count}/{period}"


MAIN = [sys.executable, "-c", "from hyperbeam.cli import main; main()", "keys"]


def run(home: Path, *arguments: str) -> str:
    """The command in a process of its own, as beside a node that runs."""
    done = subprocess.run(
        [*MAIN, *arguments, "--home", str(home)], capture_output=True, text=True, check=False
    )
    if done.returncode == 2:
        raise ConfigError(done.stderr)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_line_while_the_store_is_open(tmp_path: Path) -> None:
    node = LMDBStore(tmp_path / "store")
    node.open()
    doors = Access(AccessConfig(), node, LocalCounters())
    assert not doors.required
    secret = run(tmp_path, "add", "ada", "--requests", "60/min", "--expires", "30d").split()[-1]
    other = Access(AccessConfig(), node, LocalCounters())
    assert other.check(asking(secret)).headers["x-ratelimit-limit-requests"] == "60"
    assert "ada" in run(tmp_path, "list") and "60/min" in run(tmp_path, "list")
    assert secret not in run(tmp_path, "list")
    with pytest.raises(ConfigError, match="already"):
        run(tmp_path, "add", "ada")
    run(tmp_path, "revoke", "ada")
    assert "revoked" in run(tmp_path, "list")
    with pytest.raises(Unauthorized):
        Access(AccessConfig(), node, LocalCounters()).check(asking(secret))
    for wrong in (["--requests", "x"], ["--expires", "1y"]):
        with pytest.raises(ConfigError):
            run(tmp_path, "add", "bob", *wrong)
    with pytest.raises(ConfigError, match="name"):
        run(tmp_path, "add", "a\nb")
    node.close()


def test_proxies_are_believed_as_far_as_they_are_trusted() -> None:
    proxies = Proxies(["10.0.0.0/8", "::1"])
    for peer, said, client in (
        ("1.2.3.4", "5.6.7.8", "1.2.3.4"),
        ("10.0.0.1", "5.6.7.8", "5.6.7.8"),
        ("10.0.0.1", "9.9.9.9, 5.6.7.8, 10.0.0.2", "5.6.7.8"),
        ("::1", "[2001:db8::1]:443", "2001:db8::1"),
        ("10.0.0.1", "5.6.7.8:1234", "5.6.7.8"),
        ("10.0.0.1", "evil", "unknown"),
        ("10.0.0.1", "5.6.7.8, ", "unknown"),
        ("10.0.0.1", None, "10.0.0.1"),
        ("", "5.6.7.8", ""),
    ):
        assert proxies.client(peer, {"x-forwarded-for": said} if said is not None else {}) == client
    with pytest.raises(ConfigError, match="trusted_proxies"):
        Proxies(["10.0.0.0/99"])


@given(st.text(), st.text())
def test_any_chain_gives_an_address(peer: str, said: str) -> None:
    proxies = Proxies(["0.0.0.0/0"])
    assert isinstance(proxies.client(peer, {"x-forwarded-for": said}), str)


def test_receipts_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    path = tmp_path / "receipts.sqlite"
    old = sqlite3.connect(path)
    old.executescript(
        "CREATE TABLE receipts (seq INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB NOT NULL UNIQUE,"
        " stored INTEGER NOT NULL, body BLOB NOT NULL, log_index INTEGER);"
        "INSERT INTO receipts (id, stored, body) VALUES (x'00ff', 1, x'7b7d');"
        "PRAGMA user_version = 1;"
    )
    old.close()
    for _ in range(2):
        file = ReceiptFile(path)
        file.open()
        assert file.body("00ff") == (b"{}", "")
        file.add([(b"\x01\x02", 2, b"{}", "ada")])
        assert file.body("0102") == (b"{}", "ada")
        file.close()
