"""An order as the operator sends it: a POST whose body and path are signed (RFC 9421)."""

from __future__ import annotations

import json
import secrets
from typing import Any

from ..codecs import siginfo
from ..codecs.httpsig import content_digest
from ..codecs.siginfo import Fields, Signed
from ..signers import Signer
from .orders import now

COMPONENTS = ("@method", "@path", "content-type", "content-digest")


def signed(
    path: str, keys: dict[str, Any], node: str, signer: Signer
) -> tuple[dict[str, str], bytes]:
    """Headers and body of the order `keys` to the node with the address `node`, of now."""
    said = {**keys, "to": node, "timestamp": now(), "nonce": secrets.token_hex(16)}
    body = json.dumps(said).encode()
    headers = {"content-type": "application/json", "content-digest": content_digest(body)}
    values = {"@method": "POST", "@path": path, **headers}
    parameters: dict[str, str | int] = {
        "alg": signer.alg,
        "keyid": signer.keyid,
        "created": now() // 1000,
    }
    unsigned = Signed("order", COMPONENTS, parameters, b"")
    signature = signer.sign(siginfo.base(unsigned, values.get).encode())
    fields = Fields()
    fields.add(Signed("order", COMPONENTS, parameters, signature))
    return {**headers, **fields.headers(), "accept": "application/json"}, body
