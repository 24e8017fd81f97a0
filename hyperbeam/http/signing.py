"""Replies signed by the node, as upstream signs them: by a key, and by the HMAC that names them.

Signed are the status, the type and digest of the body, and the keys of the message; not what is
of the hop, of browsers, or of this one reply's delivery.
Source: RFC 9421; upstream dev_codec_httpsig:commit/3, hb_http:reply/4.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping

from ..codecs import siginfo
from ..codecs.siginfo import MAX_COMPONENTS, Fields, Signed
from ..commitments import KEY, KEYID, label
from ..signers import HMAC, Signer
from .headers import DEVICE_ONLY_FAMILIES, OWN
from .reply import Reply

Sign = Callable[[dict[str, str], str], Awaitable[dict[str, str]]]
"""Gives `signature` and `signature-input` over header fields, with a tag ("" for none)."""

_UNSIGNED = OWN | {
    "cache-control",
    "content-security-policy",
    "date",
    "hashpath",
    "retry-after",
    "server",
    "signature",
    "signature-input",
    "vary",
    "via",
}


def fields_to_sign(reply: Reply) -> dict[str, str] | None:
    """The header fields of `reply` that are signed; None for one that is signed already, or that
    has no status: by it a signed reply is told from a request."""
    found: dict[str, str] = {}
    twice: set[str] = set()
    for raw_name, raw_value in reply.headers:
        name = raw_name.decode("ascii")
        if name == "signature-input":
            return None
        if name in _UNSIGNED or name.startswith(DEVICE_ONLY_FAMILIES):
            continue
        twice |= {name} & found.keys()
        found[name] = raw_value.decode("utf-8", "surrogateescape")
    kept = {name: value for name, value in found.items() if name not in twice}
    if "status" not in kept:
        return None
    return dict(sorted(kept.items())[:MAX_COMPONENTS])


async def sign(reply: Reply, tag: str, by: Sign) -> None:
    """Add the headers `signature` and `signature-input` to `reply`."""
    fields = fields_to_sign(reply)
    if fields:
        for name, value in (await by(fields, tag)).items():
            reply.headers.append((name.encode("ascii"), value.encode("ascii")))


def signatures(fields: Mapping[str, str], tag: str, signer: Signer) -> dict[str, str]:
    """`signature` and `signature-input` over `fields` by `signer` and by HMAC."""
    own: dict[str, str | int] = {"alg": signer.alg, "keyid": signer.keyid}
    mac: dict[str, str | int] = {"alg": HMAC, "keyid": KEYID}
    if fields.get("content-type", "").lower().startswith("multipart/"):
        # Who reads the message and writes it again to verify it writes it as a whole then.
        own["bundle"] = mac["bundle"] = "true"
    if tag:
        own["tag"] = tag
    made = Fields()
    components = tuple(map(siginfo.component, sorted(fields)))
    for said, signing in ((own, signer.sign), (mac, _mac)):
        parameters = dict(sorted(said.items()))  # RFC 9421 signs them as they stand, upstream so
        unsigned = Signed("", components, parameters, b"")
        text = siginfo.base_of_upstream(unsigned, fields.get)
        signature = signing(text.encode("utf-8", "surrogateescape"))
        made.add(Signed(label(signature), components, parameters, signature))
    return made.headers()


def _mac(data: bytes) -> bytes:
    return hmac.new(KEY, data, hashlib.sha256).digest()
