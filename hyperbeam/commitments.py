"""Ids and commitments: what a message is called, and who stands for which of its keys.

A committed message has the key `commitments`: by commitment id
`{commitment-device, type, keyid, committer, committed: [keys], signature, ...}`; one by HMAC
has no committer, and its id is that of the message without signers.
Source: RFC 9421; upstream dev_message, dev_codec_httpsig, hb_link:normalize/3.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeGuard

from .codecs import structured
from .codecs.fields import format_string
from .codecs.httpsig import MAX_VALUE, Apart, content_digest, has_control, layout
from .codecs.siginfo import BadSignature, Signed, base_of_upstream, component
from .codecs.structured import LINK_SUFFIX, Tabm
from .components import as_listed, is_data, keys_said, ordered, safe
from .errors import BadRequest
from .message import Link, Message, is_private
from .signers import HMAC, PublicKey, Signer

DEVICE = "httpsig@1.0"
MAX_COMMITMENTS = 32
MAX_SIGNED = 32
"""Nested messages with commitments that one message may have: each is verified."""
KEY = b"ao"
KEYID = "ao"
_PARAMETERS = frozenset({"bundle", "created", "expires", "nonce", "tag"})
_REQUIRED = {"commitment-device", "type", "keyid", "committed", "signature"}
_REQUIRED_OF_SIGNERS = _REQUIRED | {"committer"}


def unsigned_id(message: Message) -> str:
    """The id of `message` without its commitments: 43 characters of base64url.

    HMAC-SHA256 under the key `ao` over the RFC 9421 signature base of all its keys in
    httpsig encoding, nested messages and lists as `key+link` with their own ids. The order of
    keys, private keys and `structured.RESERVED` do not count. Equal to upstream's id but where
    upstream would give one id to two messages: values with control characters are parts of
    the body, as is `content-type` beside parts, and such names are percent-encoded.
    Raises BadRequest for a message that cannot be written (see `structured.encode`).
    """
    return _id(structured.encode(message))


def list_id(items: list[Any]) -> str:
    """The id of a list where it is linked to: of a message with the keys `1`, `2`, ... that is
    marked as a list. Raises as `unsigned_id` does."""
    return _id(structured.encode({"list": items})["list"])


def message_id(message: Message, committers: str | Collection[str] = "none") -> str:
    """The id with the commitments of `committers` (addresses, or `all`); `none`: without.

    Of several commitments it is the sum of their ids modulo 2^256, in whatever order.
    """
    chosen = of_committers(message, committers)
    if not chosen:
        return unsigned_id(message)
    total = sum(int.from_bytes(_decoded(id)) for id in chosen)
    return encoded((total % (1 << 256)).to_bytes(32))


def commitments(message: Message) -> Mapping[str, Message]:
    """By commitment id; empty where there are none, or what stands there is no such thing."""
    found = message.get("commitments")
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        return {}
    return found


def named_id(message: Message) -> str | None:
    """The id that the message's HMAC gives it, where there is one and it holds: upstream's id of a
    message without its signers."""
    macs = [
        id
        for id, one in commitments(message).items()
        if one.get("type") == HMAC and one.get("committer") is None
    ]
    if len(macs) == 1:
        with contextlib.suppress(BadSignature):
            verify(message, macs)
            return macs[0]
    return None


def pinned(message: Message) -> Message:
    """`message` with links in place of the nested messages that are signed as a whole, as who
    signs it has it: by the id of their signatures. Raises BadRequest for over MAX_SIGNED."""
    room = iter(range(MAX_SIGNED))
    return {key: _pinned(item, room) for key, item in message.items()}


def _pinned(value: Any, room: Iterator[int]) -> Any:
    if isinstance(value, list):
        return [_pinned(item, room) for item in value]
    if not isinstance(value, dict):
        return value
    if of_committers(value, "all"):
        if next(room, None) is None:
            raise BadRequest(f"over {MAX_SIGNED} nested messages have commitments")
        if is_signed_whole(value):
            return Link(message_id(value, "all"))
    return {key: _pinned(item, room) for key, item in value.items()}


def signed_id(message: Message) -> str:
    """The id over all signatures where they hold and stand for all of it, else without them."""
    return message_id(message, "all" if is_signed_whole(message) else "none")


def signed_ids(message: Message) -> list[str]:
    """The ids that its signatures give a message that is signed whole: of all, and of each."""
    if not commitments(message) or not is_signed_whole(message):
        return []
    return list(dict.fromkeys([message_id(message, "all"), *of_committers(message, "all")]))


def is_signed_whole(message: Message) -> bool:
    """Whether all of its commitments hold, and each signer stands for each key."""
    try:
        verify(message)
    except (BadSignature, BadRequest):
        return False
    keys = {structured.normalize_key(key) for key in message if is_data(key)}
    return keys <= set(committed(message, of_committers(message, "all")))


def is_exact(message: Message) -> bool:
    """Whether the id of its signatures says all of `message`: each signer and the HMAC stand for
    every key, and no commitment says more than is signed."""
    found = commitments(message)
    macs = [one for one in found.values() if one.get("type") == HMAC]
    rest = {key: value for key, value in message.items() if key != "commitments"}
    return (
        len(found) > 1
        and len(macs) == 1
        and all(
            one.keys() - _PARAMETERS == (_REQUIRED if one in macs else _REQUIRED_OF_SIGNERS)
            for one in found.values()
        )
        and all(_listed(one) == committed(message) for one in found.values())
        and not _has_reserved(rest)
        and is_signed_whole(message)
    )


def _has_reserved(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_reserved, value))
    return isinstance(value, dict) and any(
        key.lower() in structured.RESERVED or _has_reserved(item)
        for key, item in value.items()
        if not is_private(key)
    )


def committers(message: Message) -> list[str]:
    """The addresses that commitments name, each once, as they claim it (see `verify`)."""
    named = (one.get("committer") for one in commitments(message).values())
    return list(dict.fromkeys(name for name in named if isinstance(name, str)))


def of_committers(message: Message, wanted: str | Collection[str]) -> list[str]:
    """The ids of the commitments by `wanted`: addresses, `all` who sign, `none`."""
    if wanted == "none":
        return []
    names = [wanted] if isinstance(wanted, str) else wanted
    return [
        id
        for id, one in commitments(message).items()
        if one.get("committer") is not None and (wanted == "all" or one["committer"] in names)
    ]


def committed(message: Message, ids: Iterable[str] | None = None) -> list[str]:
    """The keys that each of the commitments `ids` (None: all) is for, in order."""
    found = commitments(message)
    lists = [keys_of(found[id]) for id in (found if ids is None else ids)]
    if not lists:
        return []
    common = set(lists[0]).intersection(*lists[1:])
    return [key for key in lists[0] if key in common]


def commit(
    message: Message,
    signer: Signer | None,
    keys: Iterable[str] | None = None,
    **parameters: str | int,
) -> Message:
    """`message` with one more commitment over `keys` (None: those that are committed already,
    else all). Without a signer only the HMAC is made, as it is anew after each signature.

    Parameters: those of RFC 9421 (`created`, `expires`, `nonce`, `tag`).
    Raises BadRequest for a message that cannot be written, and for keys such as `@path`: signed
    they would be `path`.
    """
    found = dict(commitments(message))
    if keys is None:
        keys = committed(message) or sorted(key for key in message if is_data(key))
    keys = sorted(set(map(structured.normalize_key, keys)))
    derived = [key for key in keys if key[:1] == "@" and component(key) == key]
    if derived:
        raise BadRequest(f"a key of the name {derived[0]!r} cannot be signed")
    found = {id: one for id, one in found.items() if one.get("type") != HMAC}
    if signer is not None:
        one: Message = {
            "commitment-device": DEVICE,
            "type": signer.alg,
            "keyid": signer.keyid,
            "committer": signer.address,
            "committed": keys,
            **parameters,
        }
        signature = signer.sign(_base(message, one))
        one["signature"] = encoded(signature)
        found[commitment_id(signature)] = one
    one = {"commitment-device": DEVICE, "type": HMAC, "keyid": KEYID, "committed": keys}
    mac = hmac.new(KEY, _base(message, one), hashlib.sha256).digest()
    found[encoded(mac)] = {**one, "signature": encoded(mac)}
    return {**message, "commitments": found}


def verify(message: Message, ids: Iterable[str] | None = None) -> None:
    """Check the commitments `ids` (None: all). Raises BadSignature naming the first that is bad."""
    found = commitments(message)
    if "commitments" in message and not found and message["commitments"] != {}:
        raise BadSignature("commitments is no mapping of ids to commitments")
    wanted = list(found if ids is None else ids)
    if len(wanted) > MAX_COMMITMENTS:
        raise BadSignature(f"{len(wanted)} commitments; at most {MAX_COMMITMENTS} are checked")
    for id in wanted:
        if id not in found:
            raise BadSignature(f"there is no commitment {id[:64]!r}")
        _check(message, id, found[id])


def commitment_id(signature: bytes) -> str:
    """SHA-256 of a signature; an HMAC is its own id."""
    return encoded(signature if len(signature) == 32 else hashlib.sha256(signature).digest())


def label(signature: bytes) -> str:
    """The name of a signature in `signature-input`, as upstream gives it."""
    return f"sig-{encoded(hashlib.sha256(signature).digest()).lower()}"


def is_hmac(signed: Signed) -> bool:
    """Whether it is upstream's HMAC, which everybody can make: it names a message, nobody."""
    return signed.text("alg") == HMAC and signed.text("keyid") == KEYID


def mac_holds(signature: bytes, data: bytes) -> bool:
    return hmac.compare_digest(signature, hmac.new(KEY, data, hashlib.sha256).digest())


def as_signed(message: Message, commitment: Message) -> Signed:
    """A commitment as `signature-input` has it: with the names that its keys have on the wire."""
    return _signed(_headers(message, commitment), commitment)


def _signed(headers: Iterable[str], commitment: Message) -> Signed:
    parameters: dict[str, str | int] = {"alg": str(commitment.get("type", ""))}
    for name in sorted(_PARAMETERS | {"keyid"}):
        value = commitment.get(name)
        if _is_parameter(value):
            parameters[name] = value
    signature = _decoded(commitment.get("signature", ""))
    names = map(safe, ordered(headers, _listed(commitment)))
    return Signed(label(signature), tuple(names), parameters, signature)


def as_commitments(signed: Iterable[Signed], apart: Apart) -> Message:
    """What signatures of an HTTP message say, as the key `commitments` has it; nothing is checked.

    The committer of a key that is not known here is none.
    """
    found: Message = {}
    for one in signed:
        said: Message = {
            **one.parameters,
            "commitment-device": DEVICE,
            "type": one.text("alg"),
            "committed": as_listed(one.components, keys_said(one.components, apart)),
            "signature": encoded(one.signature),
        }
        said.pop("alg", None)
        key = None if is_hmac(one) else PublicKey.of("", one.text("keyid"))
        if key is not None:
            said["committer"] = key.address
        found[commitment_id(one.signature)] = said
    return found


def head_of(message: Message) -> dict[str, bytes]:
    """What of `message` stands in a head where it is signed, its body as a digest."""
    return _with_digest(_linked(structured.encode(message)))


def keys_of(commitment: Message) -> list[str]:
    """The keys that a commitment is for."""
    return [key for key in _listed(commitment) if key not in structured.RESERVED]


def _listed(commitment: Message) -> list[str]:
    keys = commitment.get("committed")
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        return []
    return keys


def encoded(data: bytes) -> str:
    """base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _check(message: Message, id: str, commitment: Message) -> None:
    signature = _decoded(commitment.get("signature", ""))
    alg, keyid = str(commitment.get("type", "")), str(commitment.get("keyid", ""))
    keys = keys_of(commitment)
    there = {structured.normalize_key(key) for key in message if is_data(key)}
    missing = [key for key in keys if key not in there]
    if not keys or missing:
        raise BadSignature(
            f"the commitment {id[:64]} is for keys that are not there: {str(missing)[:200]}"
        )
    if commitment_id(signature) != id or encoded(signature) != commitment["signature"]:
        raise BadSignature(f"the commitment {id[:64]} has not that id")
    if commitment.get("commitment-device", DEVICE) != DEVICE:
        raise BadSignature(f"the commitment {id[:64]} is of another device than {DEVICE}")
    if any(name in commitment and not _is_parameter(commitment[name]) for name in _PARAMETERS):
        raise BadSignature(f"the commitment {id[:64]} has a parameter that is no text or integer")
    data = _base(message, commitment)
    if alg == HMAC and keyid == KEYID:
        if commitment.get("committer") is not None or not mac_holds(signature, data):
            raise BadSignature(f"the HMAC {id[:64]} does not hold")
        return
    key = PublicKey.of(alg, keyid)
    if key is None:
        raise BadSignature(f"the commitment {id[:64]} is by a key that is not known here")
    if key.address != commitment.get("committer") or not key.holds(signature, data):
        raise BadSignature(f"the signature {id[:64]} does not hold")


def _is_parameter(value: Any) -> TypeGuard[str | int]:
    return isinstance(value, str) or type(value) is int


def _base(message: Message, commitment: Message) -> bytes:
    headers = _headers(message, commitment)
    values = {safe(name): value for name, value in headers.items()}
    signed = _signed(headers, commitment)
    text = base_of_upstream(signed, lambda name: values[name].decode("utf-8", "surrogateescape"))
    return text.encode("utf-8", "surrogateescape")


def _headers(message: Message, commitment: Message) -> dict[str, bytes]:
    """What of the keys that a commitment is for stands in a head, the body as its digest."""
    keys = frozenset(keys_of(commitment))
    wanted = {
        key: value
        for key, value in message.items()
        if structured.normalize_key(key) in keys and is_data(key)
    }
    bundled = commitment.get("bundle") == "true"
    tabm = structured.encode(wanted if bundled else pinned(wanted))
    return _with_digest(tabm if bundled else _linked(tabm))


def _id(tabm: Tabm) -> str:
    headers = _with_digest(_linked(tabm))
    mac = hmac.new(KEY, _signature_base(headers), hashlib.sha256).digest()
    return encoded(mac)


def _linked(tabm: Tabm) -> Tabm:
    linked: Tabm = {}
    for key, value in tabm.items():
        if isinstance(value, dict):
            linked[key + LINK_SUFFIX] = _id(value)
        else:
            linked[key] = value
    return linked


def _with_digest(tabm: Tabm) -> dict[str, bytes]:
    headers, body = layout(tabm, _fits, group=bool)
    if body is not None:
        headers["content-digest"] = content_digest(body).encode()
    return headers


def _signature_base(headers: dict[str, bytes]) -> bytes:
    """RFC 9421 2.5 over every header, with the parameters that upstream gives an HMAC.

    Stored ids depend on each byte of it.
    """
    names = sorted(headers)
    lines = [f'"{safe(name)}": '.encode() + headers[name] for name in names]
    components = " ".join(format_string(component(safe(name))) for name in names)
    parameters = f'"@signature-params": ({components});alg="hmac-sha256";keyid="ao"'
    return b"\n".join(lines) + b"\n" + parameters.encode()


def _fits(key: str, value: bytes) -> bool:
    return len(value) <= MAX_VALUE and not has_control(value)


def _decoded(text: Any) -> bytes:
    if not isinstance(text, str):
        return b""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
