"""multipass@1.0: has a stack run as often as the message says. Source: upstream dev_multipass."""

from __future__ import annotations

from typing import Any, ClassVar

from hyperbeam import BadRequest, Device, Message
from hyperbeam.message import without


class Multipass(Device):
    """Any key asks the stack for another pass until `pass` is `passes`."""

    name = "multipass@1.0"
    pure = True
    carries = True
    excludes: ClassVar[frozenset[str]] = frozenset({"keys", "set"})

    def default(self, name: str, base: Any, request: Message) -> Message:
        """The message as it is, with another pass asked for where `pass` is below `passes`."""
        if not isinstance(base, dict):
            raise BadRequest("multipass@1.0 works on messages")
        count, wanted = base.get("pass", 1), base.get("passes", 1)
        if type(count) is not int or type(wanted) is not int:
            raise BadRequest("pass and passes have to be integers", param="passes")
        message = without(base, ("priv",))
        return {**message, "priv": {"stack": "pass"}} if count < wanted else message
