"""json@1.0: messages to JSON and back, as keys of a path.

Source: upstream dev_codec_json.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hyperbeam import CodecDevice, Message, key
from hyperbeam.codecs import json


class JSONDevice(CodecDevice):
    """`POST /~json@1.0/deserialize` reads the body; `/serialize~json@1.0` writes a message."""

    name: ClassVar[str] = "json@1.0"
    pure = True
    content_type = "application/json"

    @key(name="content-type")
    def type_of(self, base: Any, request: Message) -> str:
        """The media type of what `serialize` gives."""
        return self.content_type

    def encode(self, value: Any) -> bytes:
        return json.encode(value)

    def decode(self, data: bytes) -> Any:
        return json.decode(data)
