"""flat@1.0: messages as lines of paths and values, as keys of a path.

Source: upstream dev_codec_flat.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hyperbeam import BadRequest, CodecDevice
from hyperbeam.codecs import flat


class FlatDevice(CodecDevice):
    """`POST /~flat@1.0/deserialize` reads the body; `/serialize~flat@1.0` writes a message."""

    name: ClassVar[str] = "flat@1.0"
    pure = True

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, dict):
            raise BadRequest(f"a {type(value).__name__} has no paths: flat@1.0 writes messages")
        return flat.to_text(value)

    def decode(self, data: bytes) -> Any:
        return flat.from_text(data)
