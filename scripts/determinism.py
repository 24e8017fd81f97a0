"""Repeat requests alone and beside other traffic, and print which answers were the same.

Compares text, log probabilities and finish reasons byte for byte with the first answer
given alone. Exit status 1 when any differs.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import random
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

STORY = "The ferry left the harbour at dawn and the gulls followed it far out over the bay. "
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


@dataclass(frozen=True)
class Case:
    """One request that is repeated."""

    name: str
    path: str
    body: dict[str, Any]


class Target:
    """Where requests go: a base URL as an SDK takes it, or http+unix://SOCKET/v1."""

    def __init__(self, url: str, key: str) -> None:
        self.parts = urlsplit(url)
        if self.parts.path in ("", "/"):
            self.parts = self.parts._replace(path="/v1")
        self.headers = {"content-type": "application/json"}
        if key:
            self.headers["authorization"] = f"Bearer {key}"

    def connect(self) -> http.client.HTTPConnection:
        host = self.parts.hostname or "127.0.0.1"
        if self.parts.scheme == "https":
            return http.client.HTTPSConnection(host, self.parts.port, timeout=600)
        connection = http.client.HTTPConnection(host, self.parts.port, timeout=600)
        if self.parts.scheme == "http+unix":
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(unquote(self.parts.netloc))
        return connection

    def send(self, path: str, body: dict[str, Any]) -> http.client.HTTPConnection:
        connection = self.connect()
        target = self.parts.path.rstrip("/") + path
        connection.request("POST", target, json.dumps(body), self.headers)
        return connection

    def ask(self, case: Case) -> tuple[str, int]:
        """SHA-256 of the answer's choices, and its tokens."""
        connection = self.send(case.path, case.body)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        if response.status != 200:
            raise SystemExit(f"{case.path} answered {response.status}: {text[:300]!r}")
        answer = json.loads(text)
        choices = json.dumps(answer["choices"], sort_keys=True).encode()
        return hashlib.sha256(choices).hexdigest(), answer["usage"]["completion_tokens"]


class Traffic:
    """Other clients: requests of all lengths, a third of which leave in mid-stream."""

    def __init__(self, target: Target, clients: int) -> None:
        self.sent = 0
        self._target = target
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(clients)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        dice = random.Random(number)
        while not self._stop.is_set():
            text = f"Number {dice.random()}. " + STORY * dice.choice((0, 1, 3, 20))
            body = {
                "model": "default",
                "messages": [{"role": "user", "content": text}],
                "max_tokens": dice.choice((1, 8, 40)),
                "temperature": dice.choice((0, 0.7, 1)),
                "stream": True,
            }
            connection = self._target.send("/chat/completions", body)
            response = connection.getresponse()
            response.read(1 if dice.random() < 0.3 else None)
            connection.close()
            self.sent += 1


def cases(tokens: int) -> list[Case]:
    prompts = {
        "short": "What is the capital of France?",
        "60 tokens": STORY * 2 + "What comes next?",
        "100 tokens": STORY * 5 + "Go on.",
        "300 tokens": STORY * 15 + "Go on.",
        "600 tokens": STORY * 30 + "Go on.",
    }
    found = []
    for name, text in prompts.items():
        body = {
            "model": "default",
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "logprobs": True,
            "top_logprobs": 2,
        }
        chat = "/chat/completions"
        found.append(Case(f"{name}, temperature 0", chat, {**body, "temperature": 0}))
        found.append(Case(f"{name}, temperature 1", chat, {**body, "temperature": 1, "seed": 42}))
    schema = {
        "model": "default",
        "messages": [{"role": "user", "content": "Describe a person."}],
        "max_tokens": tokens,
        "temperature": 1,
        "seed": 7,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": SCHEMA},
        },
    }
    found.append(Case("JSON schema, temperature 1", "/chat/completions", schema))
    plain: dict[str, Any] = {
        "model": "default",
        "prompt": STORY,
        "max_tokens": tokens,
        "temperature": 1,
        "seed": 3,
    }
    found.append(Case("completions, temperature 1", "/completions", plain))
    return found


def progress(phase: str, everything: Sequence[Case]) -> Iterator[Case]:
    """The cases, each named on standard error as it begins."""
    for number, case in enumerate(everything, 1):
        sys.stderr.write(f"{phase}: {number} of {len(everything)}, {case.name}\n")
        yield case


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="determinism", description=__doc__)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8734/v1")
    parser.add_argument("--repeat", type=int, default=2, help="times a request and a setting")
    parser.add_argument("--clients", type=int, default=3, help="clients that make other traffic")
    parser.add_argument("--tokens", type=int, default=16, help="longest answer")
    parser.add_argument("--key", default="", help="API key")
    options = parser.parse_args(arguments)
    target = Target(options.url, options.key)
    everything = cases(options.tokens)

    first: dict[str, str] = {}
    length: dict[str, int] = {}
    results: dict[str, list[list[bool]]] = {case.name: [] for case in everything}
    try:
        for case in progress("alone", everything):
            first[case.name], length[case.name] = target.ask(case)
            again = [target.ask(case)[0] for _ in range(options.repeat)]
            results[case.name].append([digest == first[case.name] for digest in again])
        with Traffic(target, options.clients) as traffic:
            for case in progress("beside", everything):
                again = [target.ask(case)[0] for _ in range(options.repeat)]
                results[case.name].append([digest == first[case.name] for digest in again])
        with ThreadPoolExecutor(options.repeat) as pool:
            for case in progress("at once", everything):
                answers = pool.map(target.ask, [case] * options.repeat)
                results[case.name].append([digest == first[case.name] for digest, _ in answers])
    except OSError as error:
        raise SystemExit(f"{options.url} does not answer: {error}") from error

    say = sys.stdout.write
    say(f"{'request':<28}{'tokens':>7}{'alone':>9}{'beside':>9}{'at once':>9}\n")
    for case in everything:
        counts = [f"{sum(same)}/{len(same)}" for same in results[case.name]]
        say(f"{case.name:<28}{length[case.name]:>7}" + "".join(f"{c:>9}" for c in counts) + "\n")
    different = sum(not same for rows in results.values() for row in rows for same in row)
    total = sum(len(row) for rows in results.values() for row in rows)
    say(f"{total - different} of {total} the same, beside {traffic.sent} other requests\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
