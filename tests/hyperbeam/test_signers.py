"""Keys that sign: files of them, and what is no key."""

import base64
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from hyperbeam import ConfigError
from hyperbeam.signers import PublicKey, RSASigner, read_key

_KEY = rsa.generate_private_key(65537, 2048)


def _jwk() -> dict[str, str]:
    numbers = _KEY.private_numbers()
    values = {
        "n": numbers.public_numbers.n,
        "e": numbers.public_numbers.e,
        "d": numbers.d,
        "p": numbers.p,
        "q": numbers.q,
        "dp": numbers.dmp1,
        "dq": numbers.dmq1,
        "qi": numbers.iqmp,
    }
    return {
        name: base64.urlsafe_b64encode(value.to_bytes((value.bit_length() + 7) // 8))
        .rstrip(b"=")
        .decode()
        for name, value in values.items()
    } | {"kty": "RSA"}


def wallet_file(folder: Path) -> tuple[Path, str]:
    """A wallet file, and the address of its key."""
    file = folder / "wallet.json"
    file.write_text(json.dumps(_jwk()))
    file.chmod(0o600)
    return file, RSASigner(_jwk()).address


def test_a_wallet_signs_what_its_key_verifies(tmp_path: Path) -> None:
    file, address = wallet_file(tmp_path)
    signer = read_key(str(file))
    assert signer.address == address
    key = PublicKey.of(signer.alg, signer.keyid)
    assert key is not None
    assert key.address == address
    assert key.holds(signer.sign(b"data"), b"data")
    assert not key.holds(signer.sign(b"data"), b"date")


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file, _ = wallet_file(tmp_path)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_key(str(file))


def test_what_is_no_key_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ConfigError, match="missing"):
        read_key(str(missing))


@given(st.one_of(st.binary(max_size=60), st.sampled_from([b"{}", b'{"n": 1}', b"[]", b"{\xff"])))
def test_any_file_is_a_key_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    file = tmp_path_factory.mktemp("key") / "key"
    file.write_bytes(data)
    file.chmod(0o600)
    with pytest.raises(ConfigError):
        read_key(str(file))
