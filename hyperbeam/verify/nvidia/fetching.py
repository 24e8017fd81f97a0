"""Asking several servers at once within one time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from .refused import Refused
from .resources import OCSP_SERVICE, RIM_SERVICE, Fetch

MAX_REPLY = 8 * 1024 * 1024
_WORKERS = 8


@dataclass(frozen=True, slots=True)
class Question:
    """What to fetch: `body` None asks with GET."""

    url: str
    body: bytes | None = None
    content_type: str = ""


class Fetcher:
    """Fetches until `deadline` seconds have passed since it was made."""

    def __init__(self, fetch: Fetch | None, deadline: float) -> None:
        self._fetch = fetch
        self._end = time.monotonic() + deadline

    def all(self, questions: Sequence[Question]) -> list[bytes | Refused]:
        """A reply or the reason why there is none, for each question.

        Reasons: `unavailable` (no network was given), `missing`, `timeout`, `unreachable`,
        `too-large`. A server that hangs is left to its thread when the time is over.
        """
        fetch = self._fetch
        if fetch is None:
            return [Refused("unavailable", "no network was given to ask") for _ in questions]
        waiting: SimpleQueue[int] = SimpleQueue()
        done: SimpleQueue[tuple[int, bytes | Refused]] = SimpleQueue()
        for index in range(len(questions)):
            waiting.put(index)

        def work() -> None:
            while time.monotonic() < self._end:
                try:
                    index = waiting.get_nowait()
                except Empty:
                    return
                done.put((index, _ask(fetch, questions[index])))

        # Daemon threads: one that hangs in a server's silence must not hold up the process.
        for _ in range(min(_WORKERS, len(questions))):
            threading.Thread(target=work, name="verify-fetch", daemon=True).start()
        late = Refused("timeout", "there was no answer in time")
        replies: list[bytes | Refused] = [late] * len(questions)
        for _ in questions:
            try:
                index, reply = done.get(timeout=max(0.0, self._end - time.monotonic()))
            except Empty:
                break
            replies[index] = reply
        return replies


class _NotAsked(FileNotFoundError):
    """The service can have no such thing, so it was not asked."""


def without_nvidia(fetch: Fetch) -> Fetch:
    """`fetch` for evidence under another root, of which NVIDIA's own services know nothing."""

    def ask(url: str, body: bytes | None, content_type: str) -> bytes:
        if url.startswith((RIM_SERVICE, OCSP_SERVICE)):
            raise _NotAsked(url)
        return fetch(url, body, content_type)

    return ask


def _ask(fetch: Fetch, question: Question) -> bytes | Refused:
    try:
        reply = fetch(question.url, question.body, question.content_type)
    except _NotAsked:
        said = f"{question.url} was not asked: the evidence is not under NVIDIA's root"
        return Refused("missing", said)
    except FileNotFoundError:
        return Refused("missing", f"{question.url} has no such thing")
    except TimeoutError:
        return Refused("timeout", f"{question.url} was too slow")
    except Exception as error:  # whatever a fetch may raise must not pass for an answer
        said = type(error).__name__
        return Refused("unreachable", f"{question.url} cannot be had: {said}")
    if len(reply) > MAX_REPLY:
        return Refused("too-large", f"{question.url} answered with over {MAX_REPLY} bytes")
    return reply
