"""Messages with the shapes that upstream's test vectors have, and keys to sign them with.

Source of the shapes: upstream hb_message_test_vectors.
"""

import base64
import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hyperbeam import Atom, Link, Message
from hyperbeam.codecs import flat, httpsig, json, msgpack, structured
from hyperbeam.commitments import commit, encoded
from hyperbeam.signers import Ed25519Signer, RSASigner, Signer

LONG = "\0" * 1025
PAGE = "<html>\n<h1>Two lines,</h1>\nand one more\n</html>"


def id_of(number: int) -> str:
    """An id that nothing lies under."""
    return encoded(hashlib.sha256(str(number).encode()).digest())


def balances(count: int) -> Message:
    """Ids as keys, which keep their case."""
    return {id_of(number): number**5 for number in range(count)}


MESSAGES: Mapping[str, Message] = {
    "empty": {},
    "basic": {"normal_key": "NORMAL_VALUE"},
    "numbers": {"a": 1, "b": 2, "big": 2**80, "less": -7, "float": -1.5, "whole": 3.0},
    "atoms": {"odd_header": Atom("odd_value"), "words": Atom("two words"), "t": True, "n": None},
    "body": {"body": "NORMAL_VALUE", "test-key": "Test-Value"},
    "data": {"data": "DATA", "special-key": "VALUE"},
    "body and data": {"body": "B", "data": "D"},
    "bytes": {"last_tx": b"\xff" * 31 + b"\x02", "target": b"\x80\x04", "data": "DATA"},
    "long": {"normal": "x", "large": LONG, "another_large": LONG, "body": "In the body"},
    "nested": {"a": "1", "nested": {"b": "1"}, "c": "3"},
    "nested number": {"a": {"b": 1}},
    "nested empty": {"body": {"empty": {}, "none": [], "text": ""}},
    "empty values": {"very": "", "exciting": {}, "values": [], "non-empty": "TEST"},
    "list": {"list": ["value-1", "value-2", "value-3"]},
    "list of floats": {"key-with-list": [1.0, 2.0, 3.0]},
    "list in body": {"body": [{"test-key": f"TEST VALUE #{n}"} for n in (1, 2, 3)]},
    "lists in lists": {
        "body": [[[f"{a}-{b}-{c}" for c in (1, 2)] for b in (1, 2)] for a in (1, 2)] + [[[[]]]]
    },
    "deep": {
        "data": "TEST DATA",
        "deep-data": {"data": "DEEP DATA", "complex-key": 1337, "list": [1, 2, 3]},
    },
    "nested body and data": {"body": {"a": "1"}, "data": "D"},
    "nested and body": {"in": {"a": 1}, "body": "text", "content-type": "text/plain"},
    "not ascii": {"a": "é", "b": {"c": "日本"}, "d": b"\xe9"},
    "nested bodies": {
        "depth": "outer",
        "body": {"map_item": {"depth": "inner", "body": {"depth": "innermost", "body": "DATA"}}},
    },
    "only bodies": {"depth1": "outer", "body": {"body": {"body": "depth2-body"}}},
    "nested long": {
        "depth": "outer",
        "body": {"map_item": {"depth": "inner", "large": LONG}, "large": LONG, "nested": {"b": 1}},
    },
    "lines in a body": {
        "path": "schedule",
        "method": "POST",
        "body": {
            "type": "Message",
            "parameters": {"a": 1},
            "content-type": "application/html",
            "body": PAGE,
        },
    },
    "links": {"immediate": "value", "submap": Link(id_of(0)), "list": [Link(id_of(1))]},
    "derived": {
        "path": "/test",
        "authority": "example.com",
        "scheme": "https",
        "method": "GET",
        "target-uri": "/test",
        "request-target": "/test",
        "query": "?a",
        "status": "200",
        "reason-phrase": "OK",
        "body": "TEST_DATA",
        "normal": "hello",
    },
    "ids": balances(5),
    "many ids": balances(1000),
}  # fmt: skip


def _over_http(message: Message) -> tuple[dict[str, str], bytes]:
    return httpsig.encode(message)


CODECS: Mapping[str, tuple[Callable[[Message], Any], Callable[[Any], Any]]] = {
    "structured@1.0": (structured.encode, structured.decode),
    "flat@1.0": (flat.encode, flat.decode),
    "flat@1.0 text": (flat.to_text, flat.from_text),
    "httpsig@1.0": (_over_http, lambda sent: httpsig.decode(*sent)),
    "msgpack@1.0": (msgpack.encode, msgpack.decode),
    "json@1.0": (json.encode, json.decode),
}
"""By name how each codec writes and reads."""
KEEP_COMMITMENTS = ("msgpack@1.0", "json@1.0")
"""Codecs in which commitments are keys as others are; elsewhere they travel as signatures."""


def is_json(value: Any) -> bool:
    """Whether JSON has all of a value: atoms, bytes and links become text in it."""
    if isinstance(value, dict):
        return all(map(is_json, value.values()))
    if isinstance(value, list):
        return all(map(is_json, value))
    return not isinstance(value, Atom | bytes | Link)


def there_and_back(codec: str, message: Message) -> Any:
    """What `message` is once it was written and read. Its commitments come with it."""
    write, read = CODECS[codec]
    again = read(write(message))
    if "commitments" in message and codec not in KEEP_COMMITMENTS:
        again["commitments"] = message["commitments"]
    return again


@cache
def ed25519(number: int) -> Signer:
    return Ed25519Signer(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


@cache
def arweave() -> Signer:
    """An RSA key as Arweave's wallets have it, of fewer bits than theirs: it is made quicker."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_numbers()
    numbers = {
        "n": key.public_numbers.n, "e": 65537, "d": key.d, "p": key.p, "q": key.q,
        "dp": key.dmp1, "dq": key.dmq1, "qi": key.iqmp,
    }  # fmt: skip
    jwk = {
        name: base64.urlsafe_b64encode(value.to_bytes(256)).decode().rstrip("=")
        for name, value in numbers.items()
    }
    return RSASigner({"kty": "RSA", **jwk})


def signed_by(signers: str, message: Message) -> Message:
    """`message` committed by `ed25519`, `rsa`, or `both` one after the other."""
    if signers != "rsa":
        message = commit(message, ed25519(1))
    return message if signers == "ed25519" else commit(message, arweave())
