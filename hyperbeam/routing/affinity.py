"""What the requests of one conversation have in common, so that they can go to one node.

Engines keep what they have computed of a prompt's beginning: whoever answered a
conversation's last turn answers its next one sooner.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..message import Message

SESSION = "x-session-id"
"""A client's own name for a conversation, a header; it counts before anything else."""
PROMPT_CHARACTERS = 256
BODY_BYTES = 512
MAX_PARSED = 1024 * 1024


def of_request(request: Message) -> bytes:
    """The session's name, else the beginning of the conversation in a JSON body.

    Else the first bytes of the body, and without one the path.
    """
    session = request.get(SESSION)
    if isinstance(session, str) and session:
        return session.encode("utf-8", "replace")
    body = request.get("body") or b""
    if isinstance(body, str):
        body = body.encode("utf-8", "replace")
    if not body:
        return str(request.get("path", "")).encode("utf-8", "replace")
    if body[:1] == b"{" and len(body) <= MAX_PARSED:
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            fields = None
        if isinstance(fields, Mapping):
            return of_fields(fields) or bytes(body[:BODY_BYTES])
    return bytes(body[:BODY_BYTES])


def of_fields(fields: Mapping[str, Any]) -> bytes:
    """Of a request's JSON: model, system message and first user message, or the prompt's start.

    Empty where it has neither messages nor a prompt.
    """
    model = str(fields.get("model") or "")
    messages = fields.get("messages")
    if isinstance(messages, list) and messages:
        begin: list[Any] = [fields.get("system")]
        for message in messages:
            if not isinstance(message, Mapping):
                continue
            begin.append([message.get("role"), message.get("content")])
            if message.get("role") == "user":
                break
        return json.dumps([model, begin], sort_keys=True).encode()
    prompt = fields.get("prompt", fields.get("input"))
    if prompt is None:
        return b""
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)
    return json.dumps([model, text[:PROMPT_CHARACTERS]]).encode()
