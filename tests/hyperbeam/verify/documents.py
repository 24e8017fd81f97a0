"""Documents as a node makes them, signed with keys of the test's own."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hyperbeam.verify import jcs, signing
from hyperbeam.verify.seed import derive

TIME = 1_790_000_000_000
DAY = 24 * 3600 * 1000
NONCE = "ab" * 32
REQUEST = b'{"model":"m","messages":[{"role":"user","content":"h\xc3\xa9llo"}],"tee":true}'
SEED = derive(REQUEST, NONCE)
FORWARDED = b'{"model":"m","messages":[{"role":"user","content":"h\xc3\xa9llo"}],"seed":%d}' % SEED
ANSWER = (
    '{"id":"chatcmpl-1","object":"chat.completion","created":1790000000,"model":"m",'
    '"choices":[{"index":0,"message":{"role":"assistant","content":"grüße, {\\"you\\"}"},'
    '"finish_reason":"stop"}]}'
).encode()
CHUNK = (
    b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1790000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}'
)
STREAM = b"data: " + CHUNK + b"\n\n: keep-alive\n\ndata: " + CHUNK + b"\n\n"
MODEL = {"name": "m", "sha256": "cd" * 32, "size": 123, "by": "hashed"}
BACKEND = {"kind": "llama", "where": "child", "settings": {"n_ctx": 4096}}
UEIDS = ["123"]


def sha256(data: bytes | str) -> str:
    return hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()


def of(data: bytes) -> dict[str, Any]:
    return {"sha256": sha256(data), "length": len(data)}


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def sign(key: Ed25519PrivateKey, context: bytes, data: bytes) -> str:
    return key.sign(signing.signed_input(context, data)).hex()


@dataclass
class Signer:
    """A node's keys and all that it signs with them."""

    identity: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    receipt: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    log: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    gpu: dict[str, Any] | None = None

    @property
    def node(self) -> str:
        return signing.address(public(self.identity))

    def keyset(self, **changes: Any) -> dict[str, Any]:
        value = {
            "v": "hyperbeam.keyset/1",
            "node": self.node,
            "identity": {"alg": "ed25519", "key": public(self.identity).hex()},
            "not_before": TIME - DAY,
            "not_after": TIME + DAY,
            "previous": None,
            "config": "ef" * 32,
            "code": None,
            "gpu": self.gpu,
            "receipt_keys": [self._key(self.receipt)],
            "log_keys": [self._key(self.log)],
            "tls_spki": [],
            "e2ee_keys": [],
            **changes,
        }
        signature = sign(self.identity, signing.KEYSET, jcs.encode(value))
        return {**value, "signature": signature}

    @property
    def keyset_name(self) -> str:
        value = self.keyset()
        del value["signature"]
        return jcs.digest(value)

    def statement(self, response: bytes = ANSWER, stream: bool = False, **changes: Any) -> str:
        body = response.decode()
        kind = "text/event-stream" if stream else "application/json"
        value = {
            "v": "hyperbeam.answer/1",
            "node": self.node,
            "keyset": self.keyset_name,
            "receipt": "12" * 16,
            "nonce": NONCE,
            "nonce_by": "client",
            "salt": "34" * 32,
            "timestamp": TIME,
            "config": "ef" * 32,
            "request": {
                "method": "POST",
                "path": "/v1/chat/completions",
                **of(REQUEST),
                "body": REQUEST.decode(),
            },
            "forwarded": of(FORWARDED),
            "response": {
                "status": 200,
                "type": kind,
                **of(response),
                "stream": stream,
                "complete": True,
                "body": body,
            },
            "model": MODEL,
            "seed": SEED,
            "seed_by": "node",
            "backend": BACKEND,
            **changes,
        }
        return jcs.encode(value).decode()

    def signature(self, raw: str) -> dict[str, str]:
        id = signing.key_id(public(self.receipt))
        return {"key_id": id, "value": sign(self.receipt, signing.ANSWER, raw.encode())}

    def make_receipt(self, raw: str | None, reply: bytes, **changes: Any) -> dict[str, Any]:
        value = {
            "v": "hyperbeam.receipt/1",
            "id": "12" * 16,
            "node": self.node,
            "keyset": self.keyset_name,
            "key_id": signing.key_id(public(self.receipt)),
            "nonce": NONCE,
            "nonce_by": "client",
            "salt": secrets.token_hex(16),
            "statement": None if raw is None else sha256(raw),
            "answer_id": "chatcmpl-1",
            "endpoint": "chat/completions",
            "request": of(REQUEST),
            "forwarded": of(FORWARDED),
            "response": {
                "status": 200,
                **of(reply),
                "stream": False,
                "complete": True,
                "end": "complete",
            },
            "output_sha256": "56" * 32,
            "model": MODEL,
            "backend": BACKEND,
            "config": "ef" * 32,
            "seed": SEED,
            "seed_by": "node",
            "started": TIME - 5,
            "ended": TIME + 5,
            "log_by": TIME + DAY,
            **changes,
        }
        return {**value, "signature": sign(self.receipt, signing.RECEIPT, jcs.encode(value))}

    def _key(self, key: Ed25519PrivateKey) -> dict[str, str]:
        data = public(key)
        return {"id": signing.key_id(data), "alg": "ed25519", "key": data.hex()}
