"""From a checked request to the client's answer: plain, or as a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from .assemble import Assembler, merge, total_usage
from .child import ChildStream, Sender, ask
from .logprobs import Legacy, trimmed
from .request import Call, Generation
from .rewriting import Rewriting

DONE = b"data: [DONE]\n\n"


async def plain(sender: Sender, wanted: Generation, slots: int) -> dict[str, Any]:
    """The whole answer. Several choices are made `slots` at a time; one that fails ends all."""
    if len(wanted.calls) == 1:
        return await _one(sender, wanted, wanted.calls[0])
    free = asyncio.Semaphore(slots)

    async def in_turn(call: Call) -> dict[str, Any]:
        async with free:
            return await _one(sender, wanted, call)

    tasks = [asyncio.create_task(in_turn(call)) for call in wanted.calls]
    try:
        answers = await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    return merge(answers, [call.first for call in wanted.calls])


async def _one(sender: Sender, wanted: Generation, call: Call) -> dict[str, Any]:
    assembler = Assembler(wanted.api, wanted.alternatives)
    child = await ask(sender, wanted.api, call)
    try:
        async for event in child.events():
            assembler.feed(event)
    finally:
        await child.aclose()
    return assembler.result()


async def streamed(sender: Sender, wanted: Generation) -> AsyncIterator[bytes]:
    """The answer's chunks, once the first has come: the backend's own where that will do.

    Several choices follow one another, each made when the one before is complete, so
    that the order of the bytes does not depend on chance.
    """
    child = await ask(sender, wanted.api, wanted.calls[0])
    if wanted.rewritten:
        return Rewritten(sender, wanted, child)
    child.holds = True
    return child


class Rewritten(Rewriting):
    """A stream taken apart: several choices as one answer, log probabilities in the API's shape."""

    def __init__(self, sender: Sender, wanted: Generation, first: ChildStream) -> None:
        super().__init__(first)
        self._sender = sender
        self._wanted = wanted
        self._child = first

    async def aclose(self) -> None:
        await super().aclose()
        await self._child.aclose()
        self._sender.close()

    async def _run(self) -> AsyncGenerator[bytes, None]:
        wanted = self._wanted
        usages: list[Mapping[str, Any] | None] = []
        head: dict[str, Any] = {}
        for position, call in enumerate(wanted.calls):
            if position:
                self._child = await ask(self._sender, wanted.api, call)
            usage: Mapping[str, Any] | None = None
            rewrite = _Rewrite(wanted, call)
            async for event in self._child.events():
                usage = event.pop("usage", None) or usage
                event.pop("timings", None)
                head = head or {name: value for name, value in event.items() if name != "choices"}
                if event.get("choices"):
                    yield _event(rewrite(event, head))
            usages.append(usage)
            await self._child.aclose()
        if wanted.include_usage:
            usage = total_usage(usages, [call.first for call in wanted.calls])
            yield _event({**head, "choices": [], "usage": usage})
        yield DONE


class _Rewrite:
    """Gives the events of one call the answer's id and the choice's index."""

    def __init__(self, wanted: Generation, call: Call) -> None:
        self._wanted = wanted
        self._call = call
        self._legacy = Legacy(wanted.alternatives or 0)

    def __call__(self, event: dict[str, Any], head: Mapping[str, Any]) -> dict[str, Any]:
        call = self._call
        choices = [
            {**choice, "index": call.index + choice.get("index", 0) * call.stride}
            for choice in event["choices"]
        ]
        if self._wanted.alternatives is not None:
            for choice in choices:
                if choice.get("logprobs"):
                    choice["logprobs"] = self._logprobs(choice["logprobs"])
        return {**event, **head, "choices": choices}

    def _logprobs(self, logprobs: Mapping[str, Any]) -> dict[str, Any]:
        if self._wanted.api == "completions":
            return self._legacy.convert(logprobs.get("content") or [])
        return trimmed(logprobs, self._wanted.alternatives or 0)


def _event(value: Mapping[str, Any]) -> bytes:
    return (
        b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
    )
