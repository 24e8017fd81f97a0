import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from hyperbeam import ConfigError
from hyperbeam.identity import Identity
from hyperbeam.verify import signing

PEM = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
PLAIN = serialization.NoEncryption()


def put(home: Path, data: bytes) -> Path:
    path = home / "identity.key"
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def test_a_key_is_made_once(tmp_path: Path) -> None:
    first = Identity.load(tmp_path)
    path = tmp_path / "identity.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["identity.key"]
    assert isinstance(
        serialization.load_pem_private_key(path.read_bytes(), None), ed25519.Ed25519PrivateKey
    )
    second = Identity.load(tmp_path)
    assert second.address == first.address == signing.address(first.public)
    assert (first.new, second.new) == (True, False)
    assert len(first.address) == 43


def test_nodes_differ(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    assert Identity.load(tmp_path / "a").address != Identity.load(tmp_path / "b").address


def test_what_it_signs_holds_in_its_context_only(tmp_path: Path) -> None:
    identity = Identity.load(tmp_path)
    signature = identity.sign(signing.KEYSET, b"data")
    assert signing.check(identity.public, signing.KEYSET, b"data", signature)
    assert not signing.check(identity.public, signing.RECEIPT, b"data", signature)
    assert not signing.check(identity.public, signing.KEYSET, b"date", signature)


def test_a_cut_first_start_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "identity.key.new").write_bytes(b"-----BEGIN")
    identity = Identity.load(tmp_path)
    assert Identity.load(tmp_path).address == identity.address
    assert not (tmp_path / "identity.key.new").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_may_read(tmp_path: Path, mode: int) -> None:
    Identity.load(tmp_path)
    (tmp_path / "identity.key").chmod(mode)
    with pytest.raises(ConfigError, match=r"open to other users: `chmod 600 .*identity\.key`"):
        Identity.load(tmp_path)


@pytest.mark.parametrize("data", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n"])
def test_a_key_that_cannot_be_read(tmp_path: Path, data: bytes) -> None:
    path = put(tmp_path, data)
    with pytest.raises(ConfigError, match="no private key in PEM"):
        Identity.load(tmp_path)
    assert path.read_bytes() == data


def test_keys_of_other_kinds(tmp_path: Path) -> None:
    curve = ec.generate_private_key(ec.SECP256R1())
    put(tmp_path, curve.private_bytes(*PEM, PLAIN))
    with pytest.raises(ConfigError, match="not an Ed25519 key"):
        Identity.load(tmp_path)
    locked = serialization.BestAvailableEncryption(b"secret")
    put(tmp_path, ed25519.Ed25519PrivateKey.generate().private_bytes(*PEM, locked))
    with pytest.raises(ConfigError, match="has a password"):
        Identity.load(tmp_path)
    public = ed25519.Ed25519PrivateKey.generate().public_key()
    put(
        tmp_path,
        public.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    )
    with pytest.raises(ConfigError, match="no private key"):
        Identity.load(tmp_path)


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "identity.key").mkdir()
    with pytest.raises(ConfigError, match=r"identity\.key: Is a directory"):
        Identity.load(tmp_path)
    with pytest.raises(ConfigError, match="No such file"):
        Identity.load(tmp_path / "nowhere")


def test_a_link_to_nowhere_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "identity.key").symlink_to(tmp_path / "away")
    with pytest.raises(ConfigError, match="No such file"):
        Identity.load(tmp_path)
    assert not (tmp_path / "away").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_key_of_another_user(tmp_path: Path) -> None:
    put(tmp_path, b"x").chmod(0)
    with pytest.raises(ConfigError, match="Permission denied"):
        Identity.load(tmp_path)


def test_errors_and_representations_hold_nothing_secret(tmp_path: Path) -> None:
    identity = Identity.load(tmp_path)
    key = serialization.load_pem_private_key((tmp_path / "identity.key").read_bytes(), None)
    assert isinstance(key, ed25519.Ed25519PrivateKey)
    secret = key.private_bytes_raw().hex()
    assert secret not in repr(identity)
    (tmp_path / "identity.key").chmod(0o644)
    with pytest.raises(ConfigError) as refused:
        Identity.load(tmp_path)
    assert secret not in str(refused.value)
