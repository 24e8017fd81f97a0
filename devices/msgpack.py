"""msgpack@1.0: messages to msgpack and back, as keys of a path."""

from __future__ import annotations

from typing import Any, ClassVar

from hyperbeam import CodecDevice
from hyperbeam.codecs import msgpack


class MsgpackDevice(CodecDevice):
    """`POST /~msgpack@1.0/deserialize` reads the body, `/serialize~msgpack@1.0` writes one."""

    name: ClassVar[str] = "msgpack@1.0"
    pure = True
    content_type = "application/msgpack"

    def encode(self, value: Any) -> bytes:
        return msgpack.encode(value)

    def decode(self, data: bytes) -> Any:
        return msgpack.decode(data)
