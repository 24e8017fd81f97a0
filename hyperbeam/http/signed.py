"""Requests with signatures: who has signed which keys, or a 401 that says what is wrong.

Signers are those of RFC 9421 and of upstream, whose clients sign the keys of a message: `body` as
`content-digest`, `path` as a header of that name, a nested message as `key+link` with its id.
Source: RFC 9421, RFC 9530; upstream dev_codec_httpsig, hb_http:req_to_tabm_singleton.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from enum import Enum, auto
from functools import partial
from typing import Any

from ..codecs import siginfo, structured
from ..codecs.fields import escape_name
from ..codecs.httpsig import Apart, content_digest
from ..codecs.siginfo import BadSignature, Signed
from ..codecs.structured import EMPTY_MESSAGE, LINK_SUFFIX, empty_keys, parse_types
from ..commitments import (
    DEVICE,
    commitment_id,
    encoded,
    head_of,
    is_hmac,
    label,
    list_id,
    mac_holds,
    pinned,
    unsigned_id,
)
from ..commitments import verify as check
from ..components import as_listed, covered
from ..errors import BadRequest, Unauthorized
from ..message import Link, Message
from ..signers import PublicKey
from .decoding import OF_REQUEST, as_it_is, decode
from .request import BUNDLE, INPUT

DIGEST = "content-digest"
_TYPE = "content-type"
_DERIVED = frozenset(f"@{name}" for name in siginfo.DERIVED)
_MAX_KEYID = 128
"""Characters of a name for a key; what is longer can only be a key itself."""
_QUERIES = frozenset({"@query", "@request-target", "@target-uri"})


class Reading(Enum):
    """How a signer made the text that is signed.

    UPSTREAM: as upstream's nodes do; of `ao-types` what is about the keys that are signed.
    WHOLE_TYPES: the same with all of `ao-types`, as JavaScript clients do. RFC: as RFC 9421 has it.
    REWRITTEN: as upstream does of what is a part of the body: nested messages are signed by their
    ids, other values as the head that they could have been, and the digest is of the rest.
    """

    UPSTREAM = auto()
    WHOLE_TYPES = auto()
    RFC = auto()
    REWRITTEN = auto()


_ALL_TYPES = (Reading.RFC, Reading.WHOLE_TYPES)


def read(request: Message, *, raw: bool) -> Message:
    """The message of a request, its signatures checked.

    `raw`: its headers stay text and its body one value. Of a signed message only what is signed
    is kept, with method and path. `priv["signers"]` are the addresses whose signatures hold,
    `priv["committed"]` the keys that all of them stand for, `priv["signatures"]` what each says.
    Raises BadRequest, and Unauthorized naming the signature and what of it fails.
    A key that is named otherwise than by itself counts as no signature.
    """
    apart = as_it_is(request) if raw else decode(request)
    if INPUT not in request:
        return apart.message
    try:
        return _verified(_Components(request, apart), raw=raw)
    except BadSignature as error:
        raise Unauthorized(str(error), error="bad_signature") from None


def _verified(parts: _Components, *, raw: bool) -> Message:
    request, message = parts.request, parts.apart.message
    signature = request.get("signature")
    if not isinstance(signature, str):
        raise BadSignature("there is a signature-input and no signature")
    signers: dict[str, set[str]] = {}
    signatures: list[Message] = []
    commitments: Message = {}
    for signed in siginfo.parse(signature, request[INPUT]):
        _check_canonical(signature, signed)
        found = _check(signed, parts)
        if found is None:
            continue
        address, reading = found
        keys = parts.keys(signed.components, reading)
        if not raw:
            parts.check_types(signed, keys)
            parts.check_body_key(signed, keys)
        if address:
            signers[address] = signers.get(address, keys) & keys
            signatures.append(_described(signed, keys, address))
        if reading is not Reading.RFC:
            commitments[commitment_id(signed.signature)] = _commitment(signed, keys, address)
    if not signers:
        return message if raw or not commitments else {**message, "commitments": commitments}
    common = frozenset(set.intersection(*signers.values()))
    parts.check_body(common)
    request["priv"].update(signers=tuple(signers), committed=common, signatures=tuple(signatures))
    if raw:
        return message
    kept = {name: value for name, value in message.items() if name in common or name in OF_REQUEST}
    if "body" in common and parts.body_header is not None:
        kept["body"] = parts.body_header
    if not common & _QUERIES and parts.said_path != parts.target:
        kept["path"] = parts.target.partition("?")[0]
    commitments = _of_message({**kept, "path": parts.said_path}, commitments)
    return {**kept, "commitments": commitments} if commitments else kept


def _of_message(message: Message, commitments: Message) -> Message:
    """Those that hold for the message too, however it was written: not all clients write as
    upstream's nodes do."""
    found: Message = {}
    for id, one in commitments.items():
        with contextlib.suppress(BadSignature):
            check({**message, "commitments": {id: one}})
            found[id] = one
    return found


def _check(signed: Signed, parts: _Components) -> tuple[str, Reading] | None:
    """The signer's address ("" for an HMAC) and how the text was made that is signed; None for
    a key that is not known here."""
    name = signed.label[:100]
    alg, keyid = signed.text("alg"), signed.text("keyid")
    key = None
    if keyid == "ao":
        if not is_hmac(signed):
            raise BadSignature(f"{name}: the key ao is for hmac-sha256, not for {alg[:50]!r}")
    else:
        key = PublicKey.of("", keyid)
        if key is None:
            if not keyid or len(keyid) > _MAX_KEYID or name == label(signed.signature):
                raise BadSignature(f"{name}: its keyid is no key")
            return None
        if alg not in ("", key.alg):
            raise BadSignature(f"{name}: its key is for {key.alg}, not for {alg[:50]!r}")
    expires = signed.parameters.get("expires")
    if isinstance(expires, int) and expires <= time.time():
        raise BadSignature(f"{name} has expired")
    problem = ""
    for reading in parts.readings(signed):
        base = siginfo.base if reading is Reading.RFC else siginfo.base_of_upstream
        try:
            text = base(signed, parts.reader(signed, reading))
        except BadSignature as error:
            problem = problem or f"{name}: {error}"
            continue
        data = text.encode("utf-8", "surrogateescape")
        signature = signed.signature
        if mac_holds(signature, data) if key is None else key.holds(signature, data):
            return (key.address if key else ""), reading
        problem = f"{name} does not hold: {_list(signed.components)} are not what was signed"
    raise BadSignature(problem)


def _described(signed: Signed, keys: set[str], address: str) -> Message:
    """One signature of a request: `by`, its `keys`, `created` in seconds, `nonce`."""
    created = signed.parameters.get("created")
    return {
        "by": address,
        "keys": frozenset(keys),
        "created": created if type(created) is int else None,
        "nonce": signed.text("nonce") or None,
    }


def _commitment(signed: Signed, keys: set[str], address: str) -> Message:
    found: Message = {
        "commitment-device": DEVICE,
        "type": signed.text("alg"),
        "keyid": signed.text("keyid"),
        "committed": as_listed(
            signed.components, {"method" if key == "@method" else key for key in keys} - _DERIVED
        ),
        "signature": encoded(signed.signature),
    }
    for name, value in signed.parameters.items():
        found.setdefault(name, value)
    found.pop("alg", None)
    return {**found, "committer": address} if address else found


def _check_canonical(header: str, signed: Signed) -> None:
    """One signature has one spelling: base64 whose last bits are not zero says the same."""
    written = base64.b64encode(signed.signature).decode()
    if f":{written}:" not in header:
        raise BadSignature(f"{signed.label[:100]}: its base64 is not as it has to be")


class _Components:
    """What the names in the signatures of one request stand for."""

    def __init__(self, request: Message, apart: Apart) -> None:
        self.request = request
        self.apart = apart
        self.target: str = request["priv"]["target"]
        self.path: str = self.target.partition("?")[0]
        said = request["priv"].get("path-header")
        # Upstream's clients send their path as a header too.
        self.said_path: str = self.path if said is None else said
        self._head: frozenset[str] = request["priv"]["request-headers"]
        self._body: bytes = request["body"]
        # Some clients send a body that is text as a header, and no other.
        self.body_header = None if self._body else request["priv"].get("body-header")
        self._links: dict[str, str | None] = {}
        self._digest: str | None = None
        self._written: dict[str, str] | None = None

    def readings(self, signed: Signed) -> Iterator[Reading]:
        """The ways in which the text that is signed may have been made."""
        yield Reading.UPSTREAM
        if "ao-types" in signed.components:
            yield Reading.WHOLE_TYPES
        yield Reading.RFC
        if self.apart.read_by == _TYPE:
            yield Reading.REWRITTEN

    def reader(self, signed: Signed, reading: Reading) -> siginfo.Value:
        """Gives what stands for each component."""
        if reading in _ALL_TYPES:
            return self.value
        own = partial(self.value, types_of=self.keys(signed.components, reading))
        if reading is Reading.UPSTREAM:
            return own
        as_written = self._as_written()
        return lambda name: as_written[name] if name in as_written else own(name)

    def value(self, name: str, types_of: Set[str] | None = None) -> str | None:
        """The text that stands for the component `name`.

        `types_of`: the keys whose types are all of `ao-types` that counts; None: all of it.
        """
        match name:
            case "path":
                if self.said_path not in (self.path, self.target):
                    raise BadSignature("the header path is not the path that is asked for")
                return self.said_path
            case "body" if self.body_header is not None:
                return str(self.body_header)
            case "@path":
                return self.path
            case "@method" | "method":
                return str(self.request["method"])
            case "@query":
                return f"?{self.target.partition('?')[2]}"
            case "@request-target":
                return self.target
            case "@authority" | "authority":
                return str(self.request.get("host", "")).lower()
            case "@scheme":
                return "http"
            case "@target-uri":
                return f"http://{self.request.get('host', '')}{self.target}"
            case "content-digest":
                return self.check_digest()
            case "ao-types" if types_of is not None:
                return self._types(types_of)
        if name.endswith(LINK_SUFFIX) and name not in self._head:
            # Each of several signatures may name it, and an id takes a while.
            if name not in self._links:
                self._links[name] = self._link(name.removesuffix(LINK_SUFFIX))
            return self._links[name]
        if name in self._head:
            value: Any = self.request[name]
        elif name in self.apart.of_body:
            # What no head could hold is a part of the body, in the text that it would have there.
            value = structured.encode({name: self.apart.message[name]}).get(name)
        else:
            value = None
        if isinstance(value, bytes):
            return value.decode("utf-8", "surrogateescape")
        return str(value) if isinstance(value, str) else None

    def keys(self, components: Collection[str], reading: Reading = Reading.UPSTREAM) -> set[str]:
        """The keys of the message that `components` stand for."""
        apart = self.apart
        if reading is Reading.REWRITTEN:
            in_digest = self._rewritten() - self._as_written().keys()
            found = covered(
                [*components, _TYPE], self.request, Apart(apart.message, in_digest, _TYPE)
            )
            found |= {_TYPE} & apart.of_body.intersection(components)
        else:
            found = covered(components, self.request, apart)
            if DIGEST not in components or apart.read_by not in (None, *components):
                found -= self._of_head(components) & apart.of_body
        if reading in _ALL_TYPES and "ao-types" in components:
            found |= empty_keys(str(self.request.get("ao-types", "")))
        if "@authority" in found:
            found.add("host")
        if found & {"@path", *_QUERIES}:
            found.add("path")
        return found

    def _of_head(self, components: Iterable[str]) -> set[str]:
        """The keys that headers stand for, unless there is a body: it may say otherwise."""
        head = [name for name in components if name in self._head and name != DIGEST]
        return covered(head, self.request, Apart({}, frozenset())) if self._body else set()

    def check_digest(self) -> str:
        """Content-Digest of the body. Raises BadSignature where the header has another one."""
        # Each of several signatures may name it, and of a large body it takes a while.
        if self._digest is None:
            self._digest = _digest_of(self._body, self.request.get(DIGEST))
        if not self._digest:
            raise BadSignature("content-digest is not that of the body")
        return self._digest

    def check_types(self, signed: Signed, keys: Set[str]) -> None:
        """A type says what a value is: that of a signed key has to be signed too."""
        said = self.request.get("ao-types")
        if not isinstance(said, str) or "ao-types" in signed.components:
            return
        typed = keys & parse_types(said).keys()
        if typed:
            raise BadSignature(f"{signed.label[:100]}: the types of {_list(typed)} are not signed")

    def check_body_key(self, signed: Signed, keys: Set[str]) -> None:
        """Which key a body is, is signed as the body is; a nested message is none."""
        said = self.request.get("ao-body-key", "body")
        plain = said in keys and said not in self._nested()
        if plain and said != "body" and "ao-body-key" not in signed.components:
            raise BadSignature(f"{signed.label[:100]}: ao-body-key is not signed")

    def check_body(self, keys: Set[str]) -> None:
        """A body beside a signature that is not for it could be anybody's."""
        self.check_digest()
        if self._body and not keys & self.apart.of_body:
            raise BadSignature("the body is not signed: content-digest is not among what is")

    def _nested(self) -> set[str]:
        message = self.apart.message
        return {n for n in self.apart.of_body if isinstance(message[n], dict | list | Link)}

    def _rewritten(self) -> frozenset[str]:
        """What of the body has no id of its own; `data` too, which is signed as the body and sent
        as a header where `body` is nested."""
        nested = self._nested()
        plain = self.apart.of_body - nested
        moved = "body" in nested and "data" in self._head and "ao-body-key" not in self._head
        return plain | {"data"} if moved else plain

    def _as_written(self) -> dict[str, str]:
        """The head that the body's keys would have without the nested messages among them."""
        if self._written is None:
            headers = head_of({name: self.apart.message[name] for name in self._rewritten()})
            self._written = {
                name: value.decode("utf-8", "surrogateescape")
                for name, value in headers.items()
                if name != "ao-types"
            }
        return self._written

    def _link(self, name: str) -> str | None:
        value = self.apart.message.get(name)
        if isinstance(value, Link):
            return value.id
        try:
            value = pinned({name: value})[name]
            if isinstance(value, Link):
                return value.id
            if isinstance(value, dict):
                return unsigned_id(value)
            return list_id(value) if isinstance(value, list) else None
        except BadRequest as error:
            raise BadSignature(f"{name[:100]!r} has no id: {error.detail}") from None

    def _types(self, names: Set[str]) -> str | None:
        """`ao-types` of the keys that are signed: others have been added on the way."""
        said = self.request.get("ao-types")
        if not isinstance(said, str):
            return None
        types = parse_types(said)
        others = types.keys() - names
        # Upstream's client says of each request whether it wants what is nested in the reply.
        if others - {BUNDLE} or types.get(BUNDLE, "atom") != "atom":
            raise BadSignature(f"the types of {_list(others - {BUNDLE})} are not signed")
        if said not in (_written(types), EMPTY_MESSAGE):
            raise BadSignature("ao-types is not written as it was signed")
        return _written({name: types[name] for name in types.keys() - others})


def _written(types: Mapping[str, str]) -> str:
    return ", ".join(f'{escape_name(name)}="{types[name]}"' for name in sorted(types))


def _digest_of(body: bytes, said: object) -> str:
    """What `content-digest` says, where it is that of `body`, else nothing; its own without one."""
    if not isinstance(said, str):
        return content_digest(body)
    makers = {"sha-256": content_digest, "sha-512": _sha512}
    listed = [one.strip() for one in said.split(",")]
    known = {
        name: make(body) for name, make in makers.items() if any(name in one for one in listed)
    }
    checked = [one == known[one[:7]] for one in listed if one[:7] in known]
    return said if checked and all(checked) else ""


def _sha512(body: bytes) -> str:
    return f"sha-512=:{base64.b64encode(hashlib.sha512(body).digest()).decode()}:"


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)[:200]
