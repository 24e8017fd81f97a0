"""json@1.0: messages to JSON and back, as keys of a path.

Source: upstream dev_codec_json.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hyperbeam import BadRequest, Device, Message, NotFound, key
from hyperbeam.codecs import json


class JSONDevice(Device):
    """`POST /~json@1.0/deserialize` reads the body; `/serialize~json@1.0` writes a message."""

    name: ClassVar[str] = "json@1.0"

    @key
    def serialize(self, base: Any, request: Message) -> Message:
        """The message as JSON: `{content-type, body}`. Raises BadRequest for NaN and the like."""
        return {"content-type": "application/json", "body": json.encode(base)}

    @key
    def deserialize(self, base: Any, request: Message) -> Any:
        """The value of the JSON text in `body`, or in the key that `target` names.

        The message is asked first, then the request; a message is given as it is.
        Raises NotFound where neither has the key, BadRequest for text that is no JSON.
        """
        target = request.get("target", "body")
        if not isinstance(target, str):
            raise BadRequest("target has to be the name of a key", param="target")
        payload = base.get(target) if isinstance(base, Mapping) else None
        if payload is None:
            payload = request.get(target)
        if payload is None:
            raise NotFound(target, f"there is no JSON to read: the message has no key {target!r}")
        if isinstance(payload, (dict, list)):
            return payload
        if isinstance(payload, str):
            payload = payload.encode("utf-8", "surrogatepass")
        if not isinstance(payload, bytes):
            raise BadRequest(f"{target!r} is of type {type(payload).__name__}, not JSON text")
        if not payload.strip():
            raise BadRequest(f"there is no JSON to read: {target!r} is empty", param=target)
        return json.decode(payload)
