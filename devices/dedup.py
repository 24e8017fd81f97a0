"""dedup@1.0: in a stack, lets each subject pass once. Source: upstream dev_dedup."""

from __future__ import annotations

from typing import Any, ClassVar

from hyperbeam import BadRequest, Device, Message
from hyperbeam.commitments import signed_id
from hyperbeam.message import public, without


class Dedup(Device):
    """Any key ends a stack's pass (`skip`) for a subject that the message's `dedup` has the id of.

    The subject is the request's or message's `body`, or the key that `dedup-subject` names;
    `request` is the request itself. On later passes of a stack it lets everything pass.
    """

    name = "dedup@1.0"
    pure = True
    carries = True
    excludes: ClassVar[frozenset[str]] = frozenset({"keys", "set", "id", "commit"})

    def default(self, name: str, base: Any, request: Message) -> Message:
        """The message with the subject's id in `dedup`, or as it was, to be skipped."""
        if not isinstance(base, dict):
            raise BadRequest("dedup@1.0 works on messages")
        message = without(base, ("priv",))
        subject = _subject(message, request)
        if message.get("pass", 1) != 1 or subject is None:
            return message
        seen = message.get("dedup", [])
        if not isinstance(seen, list):
            raise BadRequest("dedup has to be a list of ids", param="dedup")
        id = signed_id(subject if isinstance(subject, dict) else {"body": subject})
        if id in seen:
            return {**message, "priv": {"stack": "skip"}}
        return {**message, "dedup": [id, *seen]}


def _subject(base: Message, request: Message) -> Any:
    named = base.get("dedup-subject", request.get("dedup-subject", "body"))
    if named == "request":
        return public(request)
    if not isinstance(named, str):
        raise BadRequest("dedup-subject has to be the name of a key", param="dedup-subject")
    found = base.get(named, request.get(named))
    return None if found is None or found in (b"", "") else found
