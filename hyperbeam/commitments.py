"""Ids and commitments: what a message is called, and who stands for which of its keys.

A committed message has the key `commitments`: by commitment id
`{commitment-device, type, keyid, committer, committed: [keys], signature, ...}`; one by HMAC
has no committer, and its id is that of the message without signers.
Source: RFC 9421; upstream dev_message, dev_codec_httpsig, hb_link:normalize/3.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeGuard

from .codecs import structured
from .codecs.fields import format_string, parse_dictionary
from .codecs.httpsig import MAX_VALUE, Apart, content_digest, has_control, layout
from .codecs.siginfo import BadSignature, Signed, base_of_upstream, component
from .codecs.structured import ID_SIZES, LINK_SUFFIX, Tabm
from .errors import BadRequest
from .message import Message, is_private
from .signers import HMAC, PublicKey, Signer

DEVICE = "httpsig@1.0"
MAX_COMMITMENTS = 32
KEY = b"ao"
KEYID = "ao"
_UNSAFE = re.compile(r'[\x00-\x1f\x7f"\\%]')
_PARAMETERS = ("bundle", "created", "expires", "nonce", "tag")


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
        keys = committed(message) or sorted(key for key in message if _is_data(key))
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
    for name in ("keyid", *_PARAMETERS):
        value = commitment.get(name)
        if _is_parameter(value):
            parameters[name] = value
    signature = _decoded(commitment.get("signature", ""))
    names = map(_safe, _ordered(headers, _listed(commitment)))
    return Signed(label(signature), tuple(names), parameters, signature)


def _ordered(headers: Iterable[str], listed: list[str]) -> list[str]:
    """In the order of the keys, if that is not sorted: upstream signs over 32 in one of its own."""
    if listed == sorted(listed):
        return sorted(headers)
    names = set(headers)
    places = {key: place for place, key in enumerate(listed)}
    in_body = [
        place
        for key, place in places.items()
        if not names & {key, key + LINK_SUFFIX} and key not in structured.RESERVED
    ]
    places["content-digest"] = min(in_body, default=len(listed))

    def place(name: str) -> tuple[int, str]:
        return places.get(name, places.get(name.removesuffix(LINK_SUFFIX), len(listed))), name

    return sorted(names, key=place)


def as_listed(components: Collection[str], keys: Collection[str]) -> list[str]:
    """`keys` as a commitment lists them that was signed over `components`: sorted, as they are;
    else in their order, where the names that are no keys have a place too."""
    bare = [name[1:] if component(name[1:]) == name else name for name in components]
    if bare == sorted(bare):
        return sorted(keys)
    own = {name.removesuffix(LINK_SUFFIX) for name in bare}
    found: list[str] = []
    for name in bare:
        key = name.removesuffix(LINK_SUFFIX)
        if name == "content-digest":
            found += sorted(key for key in keys if key not in own)
        elif key in keys or name in structured.RESERVED:
            found.append(key)
    return list(dict.fromkeys([*found, *sorted(keys)]))


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
            "committed": as_listed(one.components, _said(one.components, apart)),
            "signature": encoded(one.signature),
        }
        said.pop("alg", None)
        key = None if is_hmac(one) else PublicKey.of("", one.text("keyid"))
        if key is not None:
            said["committer"] = key.address
        found[commitment_id(one.signature)] = said
    return found


def _said(components: Collection[str], apart: Apart) -> set[str]:
    """The keys that `components` may be for: to verify them they are written again, all of them."""
    names = {name.removesuffix(LINK_SUFFIX) for name in components}
    # Upstream writes the key `method` as `@method`, and so on.
    names |= {name[1:] for name in names if name[:1] == "@" and component(name[1:]) == name}
    keys = {key for key in apart.message if _safe(key) in names and _is_data(key)}
    rest = apart.message.keys() - keys
    if "ao-ids" in names:
        keys |= {key for key in rest if len(key) in ID_SIZES}
    if "content-digest" in names:
        keys |= rest & apart.of_body
    if "ao-body-key" in names:
        # Beside a nested `body` it is signed as the body, and may have been sent as a header.
        keys |= rest & {"data"}
    return keys


def covered(components: Collection[str], headers: Mapping[str, Any], apart: Apart) -> set[str]:
    """The keys that the components of a signature stand for, of a message that came `apart`.

    The body's are covered by its digest and by the header that says how it is read, if one does.
    """
    found: set[str] = set()
    for name in components:
        if name == "content-digest":
            if apart.read_by in (None, *components):
                found |= apart.of_body
        elif name == "ao-ids":
            found |= parse_dictionary(str(headers.get(name, "")), name).keys()
        elif name not in structured.RESERVED and name != apart.read_by:
            found.add(name.removesuffix(LINK_SUFFIX))
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
    there = {structured.normalize_key(key) for key in message if _is_data(key)}
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
    values = {_safe(name): value for name, value in headers.items()}
    signed = _signed(headers, commitment)
    text = base_of_upstream(signed, lambda name: values[name].decode("utf-8", "surrogateescape"))
    return text.encode("utf-8", "surrogateescape")


def _headers(message: Message, commitment: Message) -> dict[str, bytes]:
    """What of the keys that a commitment is for stands in a head, the body as its digest."""
    keys = frozenset(keys_of(commitment))
    wanted = {
        key: value
        for key, value in message.items()
        if structured.normalize_key(key) in keys and _is_data(key)
    }
    tabm = structured.encode(wanted)
    return _with_digest(tabm if commitment.get("bundle") == "true" else _linked(tabm))


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
    lines = [f'"{_safe(name)}": '.encode() + headers[name] for name in names]
    components = " ".join(format_string(component(_safe(name))) for name in names)
    parameters = f'"@signature-params": ({components});alg="hmac-sha256";keyid="ao"'
    return b"\n".join(lines) + b"\n" + parameters.encode()


def _is_data(key: str) -> bool:
    return not is_private(key) and key not in structured.RESERVED


def _fits(key: str, value: bytes) -> bool:
    return len(value) <= MAX_VALUE and not has_control(value)


def _safe(name: str) -> str:
    """Names are written between quotes, a line each: what would break out is escaped."""
    return _UNSAFE.sub(lambda match: f"%{ord(match.group()):02x}", name)


def _decoded(text: Any) -> bytes:
    if not isinstance(text, str):
        return b""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
