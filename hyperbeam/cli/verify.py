"""`hyperbeam verify`: what to believe about a saved answer, receipt or piece of evidence."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

import click

from hyperbeam.verify.checks import Malformed

from .verdict_text import lines

if TYPE_CHECKING:
    from hyperbeam.verify import Verdict
    from hyperbeam.verify.nvidia import Fetch

FAILED, UNREADABLE, SIMULATED = 1, 2, 3
TESTS_VARIABLE = "HYPERBEAM_TESTS"
KEYSET_PATH = "/~meta@1.0/keyset"
PROOF_PATH = "/~receipt-log@1.0/consistency"


class Unreadable(click.ClickException):
    """Input that cannot be read: one line and exit status 2."""

    exit_code = UNREADABLE

    def __init__(self, message: str, reason: str = "unreadable") -> None:
        super().__init__(message)
        self.reason = reason


class _Time(click.ParamType[int]):
    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Milliseconds since 1970."""
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time such as 2024-06-01 or 2024-06-01T12:00:00Z")
        zoned = time if time.tzinfo else time.replace(tzinfo=UTC)
        return int(zoned.timestamp() * 1000)


def _kind(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    from hyperbeam.verify.document import check_kind

    if value is not None:
        try:
            check_kind(value)
        except Malformed as error:
            raise click.BadParameter(error.detail) from None
    return value


_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("source", metavar="FILE|URL|-")
@click.option("--nonce", metavar="HEX", help="The nonce that you sent: 64 hex characters.")
@click.option("--request", type=_FILE, help="The request's body, exactly as you sent it.")
@click.option(
    "--receipt", type=_FILE, help="The receipt of the attested answer or of the log proof."
)
@click.option("--answer", type=_FILE, help="The saved reply that a receipt is about.")
@click.option(
    "--keyset",
    "keysets",
    metavar="FILE|URL",
    multiple=True,
    help="A key set, or the node to ask for it.",
)
@click.option("--policy", type=_FILE, help="What to demand (JSON; see docs/verify.md).")
@click.option("--revoked", type=_FILE, help="Nodes, key sets and GPUs not to believe any more.")
@click.option("--rims", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="A folder with NVIDIA's reference manifests (.swidtag).")  # fmt: skip
@click.option("--at", type=_Time(), help="Judge the manifests' certificates at this time.")
@click.option("--trust", metavar="simulated:HEX",
              help="Also follow a made-up root with this SHA-256; never a pass.")  # fmt: skip
@click.option("--kind", callback=_kind, help="Refuse a document that is of any other kind.")
@click.option("--state", type=_FILE, help="The folder that remembers the heads of logs.")
@click.option("--offline", is_flag=True, help="Ask nothing of the network.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def verify(source: str, as_json: bool, **options: Any) -> None:
    """Check a saved answer, stream, attestation, receipt, evidence or log proof.

    Exit status: 0 all that the policy demands passed; 1 it did not; 2 the input cannot be
    read; 3 all passed, but the evidence is SIMULATED.
    """
    try:
        verdict = _verify(source, **options)
    except Unreadable as error:
        if as_json:
            said = {"verified": False, "reason": error.reason, "detail": error.message}
            click.echo(json.dumps(said, indent=2))
        raise
    if as_json:
        click.echo(json.dumps(verdict.as_dict(), indent=2, ensure_ascii=False))
    else:
        for line in lines(verdict):
            # https://no-color.org
            click.echo(line, color=False if os.environ.get("NO_COLOR") else None)
    if not verdict.verified:
        sys.exit(SIMULATED if verdict.simulated_pass else FAILED)


def _verify(
    source: str,
    *,
    nonce: str | None,
    request: Path | None,
    receipt: Path | None,
    answer: Path | None,
    keysets: tuple[str, ...],
    policy: Path | None,
    revoked: Path | None,
    rims: Path | None,
    at: int | None,
    trust: str | None,
    kind: str | None,
    state: Path | None,
    offline: bool,
) -> Verdict:
    from hyperbeam import verify as verifying

    from .fetching import fetcher

    fetch = None if offline else fetcher()
    nodes = _nodes(source, keysets)
    if offline and nodes:
        raise Unreadable(f"{nodes[0]} is not asked for anything: --offline", "offline")
    try:
        demanded = verifying.Policy.parse(_read(policy)) if policy else verifying.Policy()
        return verifying.verify(
            _source(source, fetch),
            kind=kind,
            nonce=nonce,
            policy=demanded if at is None else demanded.at(at),
            request=None if request is None else _read(request),
            receipt=None if receipt is None else _read(receipt),
            answer=None if answer is None else _read(answer),
            keyset=[_source(where, fetch) for where in keysets if not _is_node(where)],
            find_keyset=_finder(nodes, fetch),
            find_proof=_proof_finder(nodes, fetch),
            revoked=None if revoked is None else _read(revoked),
            trust=trust,
            rims=rims,
            fetch=fetch,
            heads=verifying.FileHeads(state or _state()),
            samples=os.environ.get(TESTS_VARIABLE) == "1",
        )
    except Malformed as error:
        raise Unreadable(error.detail, error.reason) from None
    except OSError as error:
        raise Unreadable(str(error)) from None


def _source(where: str, fetch: Fetch | None) -> bytes:
    """The bytes of a file, of standard input, or of what is at a URL."""
    if where == "-":
        return _limited(sys.stdin.buffer, "standard input")
    if not _is_url(where):
        return _read(Path(where))
    if fetch is None:
        raise Unreadable(f"{where} is not asked for: --offline", "offline")
    try:
        return fetch(where, None, "")
    except OSError as error:
        raise Unreadable(f"{where}: {error}") from None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return _limited(file, str(path))
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror or error}") from None


def _limited(file: BinaryIO, what: str) -> bytes:
    from hyperbeam.verify.answer import MAX_BYTES

    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise Unreadable(f"{what} is over {MAX_BYTES >> 20} MiB", "too-large")
    return data


def _is_url(where: str) -> bool:
    return where.startswith(("http://", "https://"))


def _is_node(where: str) -> bool:
    """Whether this is a node's address, without a path."""
    return _is_url(where) and not urlsplit(where).path.strip("/")


def _origin(source: str) -> str:
    parts = urlsplit(source)
    return f"{parts.scheme}://{parts.netloc}"


def _nodes(source: str, keysets: tuple[str, ...]) -> list[str]:
    """The nodes to ask: that of a document's URL, and those named for their key sets."""
    named = [where for where in keysets if _is_node(where)]
    return list(dict.fromkeys(map(_origin, [*([source] if _is_url(source) else []), *named])))


def _finder(nodes: list[str], fetch: Fetch | None) -> Callable[[str], bytes] | None:
    """Key sets by name, or the current one for ""."""
    if fetch is None or not nodes:
        return None
    return lambda name: _first(fetch, nodes, f"{KEYSET_PATH}/{name}".rstrip("/"))


def _proof_finder(nodes: list[str], fetch: Fetch | None) -> Callable[[int, int], bytes] | None:
    """Consistency proofs of the log."""
    if fetch is None or not nodes:
        return None
    return lambda old, new: _first(fetch, nodes, f"{PROOF_PATH}?old={old}&new={new}")


def _first(fetch: Fetch, nodes: list[str], path: str) -> bytes:
    """What the first of the nodes that has it gives. Raises the last one's OSError."""
    for node in nodes[:-1]:
        try:
            return fetch(node + path, None, "")
        except OSError:
            continue
    return fetch(nodes[-1] + path, None, "")


def _state() -> Path:
    import platformdirs

    return Path(platformdirs.user_state_dir("hyperbeam")) / "logs"
