"""What a request says beyond its headers as text: typed keys, parts of its body, other codecs.

`ao-types` gives headers their types, the parts of a multipart body are keys of the message, and
with `codec-device` the body is the whole message in that codec.
Source: upstream hb_http:req_to_tabm_singleton, dev_codec_httpsig_conv.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..codecs import flat, httpsig, json, msgpack
from ..codecs.httpsig import Apart
from ..codecs.siginfo import BadSignature
from ..commitments import verify
from ..errors import BadRequest, HyperbeamError, Unauthorized
from ..message import Message, public
from .request import BUNDLE

OF_REQUEST = frozenset({"method", "path", "priv"})
"""Keys that are those of the request itself, whatever its headers and body say."""
_CODEC = "codec-device"
_HTTPSIG = "httpsig@1.0"
_INLINE = "inline-body-key"
"""What `ao-body-key` was called before, and is by some clients."""
_SPECIAL = frozenset(
    {"ao-body-key", "ao-ids", "ao-types", "content-digest", "signature", _CODEC, _INLINE}
)
_READERS: Mapping[str, Callable[[bytes], Any]] = {
    "json@1.0": json.decode,
    "msgpack@1.0": msgpack.decode,
    "flat@1.0": flat.from_text,
}


def is_plain(request: Message) -> bool:
    """Whether `decode` would give the request as it is."""
    return _SPECIAL.isdisjoint(request) and not _is_multipart(request)


def as_it_is(request: Message) -> Apart:
    """The request with its headers as text and its body as one value."""
    return Apart(request, frozenset({"body"}))


def decode(request: Message) -> Apart:
    """Raises BadRequest for types, parts and text that cannot be read, 415 for a codec that
    requests cannot be written in, Unauthorized for commitments in it that do not hold."""
    own = {name: request[name] for name in OF_REQUEST}
    usual = {"body": b"", BUNDLE: request[BUNDLE]}
    body = request["body"]
    codec = request.get(_CODEC, _HTTPSIG)
    if codec != _HTTPSIG:
        said = _read(codec, body)
        _verify(said)
        return Apart({BUNDLE: request[BUNDLE], **said, **own}, frozenset(said) - OF_REQUEST, _CODEC)
    # The codec takes values as servers give them, which read a head as Latin-1.
    headers = {
        name: request[name].encode().decode("latin-1")
        for name in request["priv"]["request-headers"] - OF_REQUEST
        if isinstance(request[name], str)
    }
    old = _INLINE in headers and "ao-body-key" not in headers
    if old:
        headers["ao-body-key"] = headers.pop(_INLINE)
    apart = httpsig.decode_apart(headers, body)
    if apart.read_by == "content-type":
        del usual["body"]  # it is the parts
    message = {**usual, **public(apart.message), **own}
    if apart.read_by is None and type(message["body"]) is str:
        message["body"] = body  # text without a type is as it came
    read_by = _INLINE if old and apart.read_by == "ao-body-key" else apart.read_by
    return Apart(message, apart.of_body - OF_REQUEST, read_by)


def _read(codec: Any, body: bytes) -> Message:
    reader = _READERS.get(codec) if isinstance(codec, str) else None
    if reader is None:
        known = ", ".join([_HTTPSIG, *_READERS])
        raise HyperbeamError(
            f"no request is read in the codec {str(codec)[:100]!r}; there is: {known}",
            status=415,
            error="unsupported_codec",
            param=_CODEC,
        )
    said = reader(body)
    if not isinstance(said, dict):
        raise BadRequest(f"the body has to be a message in {codec}", param="body")
    return public(said)


def _verify(said: Message) -> None:
    if "commitments" not in said:
        return
    try:
        verify(said)
    except BadSignature as error:
        raise Unauthorized(str(error), error="bad_signature") from None


def _is_multipart(request: Message) -> bool:
    kind = request.get("content-type")
    return isinstance(kind, str) and kind[:10].lower() == "multipart/"
