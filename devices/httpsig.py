"""httpsig@1.0: messages as HTTP messages, signatures included.

Source: upstream dev_codec_httpsig.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from hyperbeam import BadRequest, Message, commitments
from hyperbeam.codec_device import CodecDevice
from hyperbeam.codecs import httpsig, siginfo
from hyperbeam.codecs.siginfo import BadSignature, Fields

_START = re.compile(r"[A-Z]+ \S+ HTTP/1\.[01]\Z|HTTP/1\.[01] [0-9]{3}( .*)?\Z")
_TRANSPORT = frozenset(
    {"connection", "content-length", "date", "host", "server", "te", "transfer-encoding"}
)


class HttpsigDevice(CodecDevice):
    """A whole HTTP message, head and body, as one text.

    `POST /~httpsig@1.0/deserialize/verify` says whether its signatures hold.
    """

    name: ClassVar[str] = "httpsig@1.0"
    pure = True

    def encode(self, value: Any) -> bytes:
        headers, body = httpsig.encode(value)
        if isinstance(value, dict) and (own := commitments.commitments(value)):
            fields = Fields()
            for one in own.values():
                fields.add(commitments.as_signed(value, one))
            headers |= fields.headers()
        head = "\r\n".join(f"{name}: {headers[name]}" for name in sorted(headers)).encode()
        return head + b"\r\n\r\n" + body if body else head

    def decode(self, data: bytes) -> Message:
        head, _, body = (b"\r\n" + data).partition(b"\r\n\r\n")
        head = head.removeprefix(b"\r\n")
        lines = head.decode("latin-1").split("\r\n") if head else []
        if lines and _START.match(lines[0]):
            del lines[0]
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, text = line.partition(":")
            name = name.lower()
            if not colon or not name or name != name.strip():
                raise BadRequest(f"{line[:100]!r} is no header")
            if name in headers:
                raise BadRequest(f"the header {name[:100]!r} is there twice")
            if name not in _TRANSPORT:
                headers[name] = text.strip()
        apart = httpsig.decode_apart(headers, body)
        message = apart.message
        said = [headers.get(name) for name in ("signature", "signature-input")]
        if said == [None, None]:
            return message
        try:
            signed = siginfo.parse(said[0] or "", said[1] or "")
        except BadSignature as error:
            raise BadRequest(str(error), error="bad_signature") from None
        return {**message, "commitments": commitments.as_commitments(signed, apart)}
