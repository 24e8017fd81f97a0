"""A codec as a device: messages to bytes and back, as keys of a path."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from .device import Device, key
from .errors import BadRequest, NotFound
from .message import Message, is_private, public


class CodecDevice(Device, ABC):
    """Has `serialize` and `deserialize`; a subclass says how, and the `content_type`, "" for
    what is a text without one."""

    content_type: ClassVar[str] = ""
    carries = True

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """`value` (a message or plain value) in this codec. Raises BadRequest."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """What `data` says. Raises BadRequest."""

    @key
    def serialize(self, base: Any, request: Message) -> Any:
        """The message in this codec: `{content-type, body}`, or its text where it has no type."""
        text = self.encode(base)
        return {"content-type": self.content_type, "body": text} if self.content_type else text

    @key
    def deserialize(self, base: Any, request: Message) -> Any:
        """The value of the text in `body`, or in the key that `target` names.

        The message is asked first, then the request; a message is given as it is. Private keys
        are left out: what a text says is never the node's own.
        Raises NotFound where neither has the key, BadRequest for text that cannot be read.
        """
        target = request.get("target", "body")
        if not isinstance(target, str):
            raise BadRequest("target has to be the name of a key", param="target")
        if is_private(target.lower()):
            raise NotFound(target)
        message = {"body": base} if isinstance(base, str | bytes) else base
        payload = message.get(target) if isinstance(message, Mapping) else None
        if payload is None:
            payload = request.get(target)
        name = self.name.partition("@")[0]
        if payload is None:
            raise NotFound(target, f"there is no {name} to read: the message has no key {target!r}")
        if isinstance(payload, (dict, list)):
            return _public(payload)
        if isinstance(payload, str):
            payload = payload.encode("utf-8", "surrogatepass")
        if not isinstance(payload, bytes):
            raise BadRequest(f"{target!r} is of type {type(payload).__name__}, not {name} text")
        if not payload.strip():
            raise BadRequest(f"there is no {name} to read: {target!r} is empty", param=target)
        return _public(self.decode(payload))


def _public(value: Any) -> Any:
    return public({"": value})[""]
