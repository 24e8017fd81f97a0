"""What the target of a request leads to: a route, or the steps of a path."""

from __future__ import annotations

from urllib.parse import unquote

from .message import Message, is_id
from .path import Step, parse

METRICS = "metrics@1.0"
METRICS_PATH = "/metrics"


def names_device(path: str) -> bool:
    """Whether a path's first part names a device, an id or a sub-path: such a path has no route."""
    part = first_part(path)
    return "~" in part or part.startswith("(") or is_id(part.partition("&")[0])


def own_path(path: str) -> str:
    """Where a path leads that no route takes: `/metrics` to the device of that name."""
    bare, question, query = path.partition("?")
    return f"/~{METRICS}{question}{query}" if bare == METRICS_PATH else path


def steps_of(path: str, request: Message) -> list[Step]:
    """The steps of a request from outside. No query replaces its method, or a body it has."""
    steps = parse(path, request)
    own = {name: request[name] for name in ("method", "body") if request.get(name)}
    for step in steps:
        if step.message.keys() & own.keys():
            step.message.update(own)
    return steps


def is_empty(step: Step) -> bool:
    return not (step.key or step.device or step.id or step.sub)


def first_part(path: str) -> str:
    return unquote(path.lstrip("/").partition("?")[0].partition("/")[0])
