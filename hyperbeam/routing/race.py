"""Several attempts at once: the first good results count, the rest is closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from ..errors import HyperbeamError

T = TypeVar("T")

log = logging.getLogger("hyperbeam.routing")


async def several(
    attempts: Sequence[Callable[[], Awaitable[T]]],
    wanted: int,
    width: int,
    *,
    may_go_on: Callable[[BaseException], bool],
    keep: set[asyncio.Task[Any]] | None,
) -> tuple[list[T], list[HyperbeamError]]:
    """Run `attempts`, `width` at a time, until `wanted` have given a result.

    In place of one that failed the next begins, beyond the first `width` only where
    `may_go_on` says so of the error. Those that then still run are ended and what they gave
    is closed; with `keep`, they run on in that set and their results are closed.
    Gives the results in the order of the attempts, and the errors as they came.
    Raises what is no HyperbeamError.
    """
    tasks: dict[asyncio.Task[T], int] = {}
    results: dict[int, T] = {}
    errors: list[HyperbeamError] = []
    started = 0

    def begin() -> None:
        nonlocal started
        task = asyncio.ensure_future(attempts[started]())
        tasks[task] = started
        started += 1

    try:
        while started < min(width, len(attempts)):
            begin()
        while tasks and len(results) < wanted:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda one: tasks[one]):
                number = tasks.pop(task)
                error = task.exception()
                if error is None:
                    results[number] = task.result()
                elif isinstance(error, HyperbeamError):
                    errors.append(error)
                else:
                    raise error
                need = wanted - len(results) - len(tasks)
                if need > 0 and started < len(attempts) and (error is None or may_go_on(error)):
                    begin()
    except BaseException:
        await _end(tasks, None)
        await _close(list(results.values()))
        raise
    await _end(tasks, keep)
    ordered = [results[number] for number in sorted(results)]
    if len(ordered) < wanted:
        await _close(ordered)
        return [], errors
    await _close(ordered[wanted:])
    return ordered[:wanted], errors


async def _end(tasks: dict[asyncio.Task[T], int], keep: set[asyncio.Task[Any]] | None) -> None:
    if keep is not None:
        for task in tasks:
            drop = asyncio.create_task(_drop(task))
            keep.add(drop)
            drop.add_done_callback(keep.discard)
        return
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(result, BaseException):
            await _close([result])


async def _drop(task: asyncio.Task[Any]) -> None:
    try:
        result = await task
    except HyperbeamError as error:
        log.debug("an answer that nobody waits for failed: %s", error)
    else:
        await _close([result])


async def _close(results: Sequence[Any]) -> None:
    """A result that holds a connection can be closed; a message cannot and need not."""
    for result in results:
        close = getattr(result, "aclose", None)
        if close is not None:
            await close()
