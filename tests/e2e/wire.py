"""What an upstream node answered, asked of this one: probes.json, more.json in tests/fixtures/wire.

`scripts/wire` prints how each row compares. Where upstream's answer is its own fault, anything but
an error of the server's is better. ours.json says which rows differ on purpose, and why.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from .process import ROOT, NodeProcess, serve

FIXTURES = ROOT / "tests" / "fixtures" / "wire"
UPSTREAM_PORT = "8734"
UPSTREAM_BACKEND = "http://127.0.0.1:9801"
CLIENT = {"user-agent": "curl/7.88.1", "accept": "*/*"}
NODES = "ABCD"
HOOKS = {"B": "router@1.0/preprocess", "C": "relay@1.0"}
"""What is done to each request by nodes that have a hook."""
_OF_THE_CLIENT = frozenset({"host", "user-agent", "content-type", "node", "build-time"})


class Backend(BaseHTTPRequestHandler):
    """Says what it was asked, with the status that the path names; /v1/stream gives events."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        wanted = re.fullmatch(r"/v1/status/(\d+)", self.path)
        if self.path == "/v1/stream":
            events = b"".join(b'data: {"i":%d}\n\n' % number for number in range(10))
            self._reply(200, "text/event-stream", events + b"data: [DONE]\n\n")
            return
        said = {
            "backend": "dummy",
            "method": self.command,
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": body.decode(),
        }
        status = int(wanted[1]) if wanted else 200
        self._reply(status, "application/json", json.dumps(said).encode())

    do_POST = do_PUT = do_DELETE = do_GET

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("x-backend", "dummy")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Quiet."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """`differs`: what is not as upstream has it. `ours`: the status that is meant where it
    differs, and why."""

    row: Mapping[str, Any]
    reply: Reply
    differs: list[str]
    ours: Mapping[str, Any]

    @property
    def word(self) -> str:
        if self.row.get("upstream_fault"):
            return "fault here too" if self.reply.status >= 500 else "better"
        if not self.differs:
            return "same"
        return "on purpose" if self.ours.get("status") == self.reply.status else "differs"


@contextmanager
def backend() -> Iterator[str]:
    """The address of a plain HTTP server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def start(folder: Path, name: str, behind: str) -> NodeProcess:
    """Node `name` of wire/README.md, not listening yet."""
    own = folder / name
    own.mkdir()
    hooks = f'[hooks]\nrequest = "{HOOKS[name]}"\n' if name in HOOKS else ""
    (own / "hyperbeam.toml").write_text(hooks)
    route = f'[[routes]]\ntemplate = "/v1/.*"\nnode = {{ prefix = "{behind}" }}\n'
    (own / "routes.toml").write_text(route)
    return serve(
        *("--config", own / "hyperbeam.toml", "--routes", own / "routes.toml"),
        *("--home", own / "home"),
    )


def ask(port: int, row: Mapping[str, Any]) -> Reply:
    """Send a row's request as curl did."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    if "--http1.0" in row.get("curl", ()):
        connection._http_vsn, connection._http_vsn_str = 10, "HTTP/1.0"
    headers = {**CLIENT, **row.get("headers", {})}
    body = row["body"].encode() if "body" in row else None
    try:
        chunked = headers.pop("transfer-encoding", "") == "chunked"
        sent: Any = iter([body]) if chunked else body
        connection.putrequest(row["method"], row["path"], skip_accept_encoding=True)
        for key, value in headers.items():
            connection.putheader(key, value)
        if chunked:
            connection.putheader("transfer-encoding", "chunked")
        elif body is not None:
            connection.putheader("content-length", str(len(body)))
        connection.endheaders(sent, encode_chunked=chunked)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, found, response.read())
    finally:
        connection.close()


def differences(row: Mapping[str, Any], reply: Reply, port: int, behind: str) -> list[str]:
    """What of `reply` is not what upstream answered, but for its pages and addresses."""

    def here(text: str) -> str:
        return text.replace(UPSTREAM_BACKEND, behind).replace(UPSTREAM_PORT, str(port))

    wanted = row["reply"]
    found = [] if reply.status == wanted["status"] else [f"status {reply.status}"]
    headers = {name: here(value) for name, value in wanted.get("headers", {}).items()}
    page = wanted.get("page", False)
    body = None if page or "body" not in wanted else here(wanted["body"])
    if body is not None and '"backend": "dummy"' in body:
        told, own = json.loads(body), _object(reply.body)
        found += [name for name in ("method", "path", "body") if told[name] != own.get(name)]
        headers.pop("content-digest", None)
    elif body is not None:
        if body.encode() != reply.body:
            found.append(f"body {reply.body[:60]!r}")
        if "content-digest" in headers and row["method"] != "HEAD":
            digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
            headers["content-digest"] = f"sha-256=:{digest}:"
    else:
        headers.pop("content-digest", None)
    for name, value in headers.items():
        if name in _OF_THE_CLIENT:
            continue
        own = reply.headers.get(name)
        if own is None or _sorted(own) != _sorted(value):
            found.append(f"{name}: {own}")
    return found


def _object(body: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(body)
    except ValueError:
        return {}
    return found


def _sorted(value: str) -> list[str]:
    """`ao-types` is a dictionary: its order says nothing."""
    return sorted(value.split(", "))


def outcomes(names: str = NODES) -> list[Outcome]:
    """All rows of the nodes `names`, asked."""
    files = ("probes.json", "more.json")
    rows = [row for file in files for row in json.loads((FIXTURES / file).read_text())]
    ours = json.loads((FIXTURES / "ours.json").read_text())
    found = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        behind = stack.enter_context(backend())
        nodes = {name: start(folder, name, behind) for name in names}
        for node in nodes.values():
            stack.callback(node.stop)
            node.listening()
        for row in rows:
            if row["node"] in nodes:
                port = nodes[row["node"]].port
                reply = ask(port, row)
                differs = differences(row, reply, port, behind)
                found.append(Outcome(row, reply, differs, ours.get(str(row["id"]), {})))
    return found


def main() -> None:
    found = outcomes()
    for outcome in found:
        row = outcome.row
        wanted = row["reply"]["status"]
        sys.stdout.write(f"{row['id']:4} {row['node']} {wanted} {outcome.word:15}{row['what']}\n")
        if outcome.word == "on purpose":
            sys.stdout.write(f"{'':11}{outcome.reply.status}: {outcome.ours['why']}\n")
        elif outcome.word == "differs":
            sys.stdout.write(f"{'':11}{'; '.join(outcome.differs)[:300]}\n")
    for word, count in Counter(outcome.word for outcome in found).most_common():
        sys.stdout.write(f"{count:4} {word}\n")


if __name__ == "__main__":
    main()
