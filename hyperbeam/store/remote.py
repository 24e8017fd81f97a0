"""The last tier of the store: other nodes, asked over HTTP for what is not here.

What they send is believed only where its own bytes give the id that was asked for. Nodes of this
kind give msgpack, HyperBEAM's give their headers; a node asked for one never asks another.
Source: upstream hb_store_remote_node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from time import monotonic
from typing import Any

from ..codecs import httpsig, msgpack, siginfo
from ..codecs.httpsig import Apart
from ..codecs.siginfo import BadSignature
from ..commitments import (
    as_commitments,
    committed,
    list_id,
    of_committers,
    signed_ids,
    unsigned_id,
    verify,
)
from ..errors import BadGateway, BadRequest, HyperbeamError, NotFound, Unavailable
from ..message import Message

Get = Callable[[str, Mapping[str, str]], Awaitable[tuple[int, Mapping[str, str], bytes]]]
"""GET a URL with headers: status, headers with lower-case names, and the body, bounded in size
and time. Raises HyperbeamError."""

MAX_ASKED = 32
"""Ids that are asked for at a time."""
ABSENT_FOR = 5.0
"""Seconds for which an id that no node has is not asked for again."""
MAX_ABSENT = 4096
_VALUE = "data/"
_OF_REPLIES = frozenset(
    {
        "connection",
        "content-length",
        "date",
        "hashpath",
        "keep-alive",
        "server",
        "status",
        "transfer-encoding",
        "vary",
        "x-content-type-options",
        "content-security-policy",
        "x-request-id",
    }
)

log = logging.getLogger("hyperbeam.store")


class Remotes:
    """`nodes`: addresses such as `https://host:port`, asked in this order."""

    def __init__(self, nodes: Sequence[str], get: Get) -> None:
        self.nodes = [node.rstrip("/") for node in nodes]
        self._get = get
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._absent: dict[str, float] = {}

    async def fetch(self, name: str) -> Any:
        """What has the id `name`, or the bytes of the value `data/ID`.

        Raises NotFound where no node has it, BadGateway where one could not be asked or sent
        something else, Unavailable while too many are asked for.
        """
        if self._absent.get(name, 0.0) > monotonic():
            raise _absent(name)
        task = self._running.get(name)
        if task is None:
            if len(self._running) >= MAX_ASKED:
                raise Unavailable("other nodes are asked for too much already", error="busy")
            task = asyncio.create_task(self._fetch(name), name=f"fetch {name}")
            self._running[name] = task
            task.add_done_callback(lambda done: self._done(name, done))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Give up what is asked for."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, name: str, task: asyncio.Task[Any]) -> None:
        self._running.pop(name, None)
        if not task.cancelled():
            task.exception()  # every caller may have gone

    async def _fetch(self, name: str) -> Any:
        failed = False
        for node in self.nodes:
            try:
                return await self._ask(node, name)
            except NotFound:
                continue
            except HyperbeamError as error:
                failed = True
                log.warning("%s is not to be had from %s: %s", name, node, error.detail)
        if failed:
            raise BadGateway(
                f"{name} is not here, and another node that may have it cannot give it now",
                error="remote_store_failed",
            )
        if len(self._absent) >= MAX_ABSENT:
            self._absent.clear()
        self._absent[name] = monotonic() + ABSENT_FOR
        raise _absent(name)

    async def _ask(self, node: str, name: str) -> Any:
        target = name.replace("/", "%2F")
        url = f"{node}/~cache@1.0/read?scope=local&target={target}"
        status, headers, body = await self._get(url, {"accept": "application/msgpack"})
        kind = headers.get("content-type", "").partition(";")[0].strip()
        if status == 200 and kind == "application/msgpack":
            return _checked(name, msgpack.decode(body))
        status, headers, body = await self._get(url, {"accept": "*/*", "accept-bundle": "true"})
        if status == 404:
            raise NotFound(name)
        if status != 200:
            raise BadGateway(f"it answered with status {status}")
        return _checked(name, body if name.startswith(_VALUE) else _message(headers, body))


def _checked(name: str, value: Any) -> Any:
    if _id(value) == name or (isinstance(value, dict) and name in signed_ids(value)):
        return value
    for items in _lists(value):
        if list_id(items) == name:
            return items
    raise BadGateway("what it sent has not that id", error="remote_store_lied")


def _lists(value: Any) -> Iterator[list[Any]]:
    """The lists that upstream may mean by a message: it gives one as a body, or by its numbers."""
    if isinstance(value, dict):
        if isinstance(value.get("body"), list):
            yield value["body"]
        numbers = [str(number) for number in range(1, len(value) + 1)]
        if numbers and value.keys() == set(numbers):
            yield [value[number] for number in numbers]


def _id(value: Any) -> str:
    if isinstance(value, dict):
        return unsigned_id(value)
    if isinstance(value, list):
        return list_id(value)
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        return _VALUE + urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode()
    return ""


def _message(headers: Mapping[str, str], body: bytes) -> Message:
    """The message of a reply, without what belongs to the reply."""
    kept = {
        name: value
        for name, value in headers.items()
        if name not in _OF_REPLIES and not name.startswith("access-control-")
    }
    if "ao-types" in kept:
        types = [one for one in kept["ao-types"].split(", ") if not one.startswith("status=")]
        kept["ao-types"] = ", ".join(types)
    apart = httpsig.decode_apart(kept, body)
    message = {name: value for name, value in apart.message.items() if name != "status"}
    signed = {**message, "commitments": _commitments(message, headers, apart)}
    signers = of_committers(signed, "all")
    if not signers:
        return message
    kept_keys = committed(signed, signers)  # a reply says more than what was signed
    return {key: value for key, value in signed.items() if key in (*kept_keys, "commitments")}


def _commitments(message: Message, headers: Mapping[str, str], apart: Apart) -> Message:
    """Those of a reply's signatures that are the message's own, and hold."""
    found: Message = {}
    try:
        signed = siginfo.parse(headers.get("signature", ""), headers.get("signature-input", ""))
    except BadSignature:
        return found
    for id, one in as_commitments(signed, apart).items():
        with contextlib.suppress(BadSignature, BadRequest):
            verify({**message, "commitments": {id: one}})
            found[id] = one
    return found


def _absent(name: str) -> NotFound:
    return NotFound(name, f"nothing is stored under {name}, here or at the nodes asked")
