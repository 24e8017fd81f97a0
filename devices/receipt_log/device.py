"""receipt-log@1.0: nobody, this node included, can take a receipt back or change it unseen."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from hyperbeam import (
    ConfigError,
    Device,
    Message,
    MethodNotAllowed,
    NotFound,
    Unavailable,
    key,
)
from hyperbeam.verify import checkpoint as notes
from hyperbeam.verify import merkle, receipt
from hyperbeam.verify.checks import Malformed

from . import asked
from .config import ReceiptLogConfig
from .logs import Logs
from .page import page
from .proofs import Proofs
from .writer import Writer

if TYPE_CHECKING:
    from hyperbeam.node import Node

T = TypeVar("T")
NAME = "receipt-log@1.0"

log = logging.getLogger("hyperbeam.receipt_log")


class ReceiptLog(Device):
    """The append-only log of this node's receipts: signed heads, and proofs under them.

    It holds hashes only. Source: RFC 9162, C2SP tlog-checkpoint and tlog-cosignature.
    """

    name = NAME
    sealed = True
    single = True
    Config = ReceiptLogConfig

    def __init__(self, node: Node, config: ReceiptLogConfig | None = None) -> None:
        config = config or ReceiptLogConfig()
        super().__init__(node, config)
        self._witnesses = [_witness(each) for each in config.witnesses]
        self._logs = Logs(node.home / "log", node.identity.address, lambda: node.keys.current)
        self._writer = Writer(node.receipts, self._logs, config.gather)
        self._proofs: Proofs | None = None

    async def start(self) -> None:
        """Continue the log, or begin one where that is not known to be safe."""
        await asyncio.to_thread(self._logs.open, unused=self.node.identity.new)
        self._proofs = Proofs(self._logs, self._witnesses)
        self._writer.start()

    async def stop(self) -> None:
        """Log what is stored and close the files."""
        await self._writer.stop()
        self._proofs = None
        self._logs.close()

    def describe(self) -> Message:
        """The log's origin and size."""
        if self._proofs is None:
            return {}
        live = self._logs.live
        return {"origin": live.origin, "size": live.size}

    @key
    async def head(self, base: Any, request: Message) -> Message:
        """The log's head as a signed note: `head`, `head?size=N`, `head?log=ORIGIN`.

        With `accept: application/json` also why and after which log it began, the last head
        that a witness cosigned, and the logs that ended.
        """
        size, origin = asked.number(request, "size"), asked.origin(request)
        await self._writer.flush()
        if asked.wants_json(request):
            return _json(await self._read(lambda proofs: proofs.status(origin, size)))
        return _text(await self._read(lambda proofs: proofs.head(origin, size)))

    @key
    async def inclusion(self, base: Any, request: Message) -> Message:
        """The proof that a leaf is in the log: `inclusion?id=RECEIPT`, `?leaf=HASH` or `?index=N`.

        `&size=N` is under the head of that size; without it under the last that a witness
        cosigned and that has the leaf, else under the current one.
        """
        wanted, origin = asked.inclusion(request), asked.origin(request)
        if wanted.index is not None:
            index = wanted.index
            await self._writer.flush()
            found = await self._read(lambda proofs: proofs.inclusion_at(origin, index, wanted.size))
            return _json(found)
        if wanted.id is not None:
            leaf = await self._leaf(wanted.id)
            proof = await self._proof(leaf, wanted.size)
            if proof is None:
                await self._read(lambda _: self._logs.forget(leaf))
                await self._writer.again(wanted.id)
                proof = await self._proof(leaf, wanted.size)
            if proof is None:
                raise Unavailable(
                    "the receipt is not in the log yet; try again",
                    error="log_unavailable",
                    retry_after=5,
                )
            return _json({**proof, "id": wanted.id})
        assert wanted.leaf is not None
        proof = await self._proof(wanted.leaf, wanted.size)
        if proof is None:
            raise NotFound(wanted.leaf.hex(), "no leaf with this hash is in the log", param="leaf")
        return _json(proof)

    @key
    async def consistency(self, base: Any, request: Message) -> Message:
        """The proof that the log only grew: `consistency?old=N`, up to `&new=N` or to now."""
        (old, new), origin = asked.consistency(request), asked.origin(request)
        await self._writer.flush()
        return _json(await self._read(lambda proofs: proofs.consistency(origin, old, new)))

    @key
    async def cosign(self, base: Any, request: Message) -> Message:
        """POST a head with a witness's cosignature (C2SP cosignature/v1), or only its lines.

        Only the witnesses of the node's config count; what is taken is shown with the head.
        """
        if request.get("method") == "GET":
            raise MethodNotAllowed("post a cosigned checkpoint", headers={"allow": "POST"})
        text = asked.body(request)
        accepted, head = await self._read(lambda proofs: proofs.cosign(text))
        witnesses = [{"name": name, "time": at} for name, at in accepted.witnesses]
        return _json({"size": accepted.size, "accepted": witnesses, "checkpoint": head})

    @key
    async def index(self, base: Any, request: Message) -> Message:
        """What the log shows, and what it does not."""
        live = await self._read(lambda _: self._logs.live)
        return _text(page(live.origin, live.size, [each.name for each in self._witnesses]))

    async def _leaf(self, id: str) -> bytes:
        found = await self.node.receipts.get(id)
        if found is None:
            raise NotFound(id, f"no receipt {id} is kept here; ask by its leaf's hash", param="id")
        return merkle.leaf_hash(receipt.leaf(found))

    async def _proof(self, leaf: bytes, size: int | None) -> dict[str, Any] | None:
        """A proof, after another look at what is not logged yet."""
        proof = await self._read(lambda proofs: proofs.inclusion_of(leaf, size))
        if proof is None:
            await self._writer.flush()
            proof = await self._read(lambda proofs: proofs.inclusion_of(leaf, size))
        return proof

    async def _read(self, work: Callable[[Proofs], T]) -> T:
        proofs = self._proofs
        if proofs is None:
            raise Unavailable("the log is not open", error="log_unavailable")
        try:
            return await asyncio.to_thread(work, proofs)
        except (OSError, sqlite3.Error) as error:
            log.error("the log of receipts cannot be read: %s", error)
            detail = "the log cannot be read now; try again, or see the node's log"
            raise Unavailable(detail, error="log_unavailable") from None


def _witness(text: str) -> notes.VerifierKey:
    try:
        found = notes.VerifierKey.parse(text)
    except Malformed as error:
        raise ConfigError(f"[receipt-log] witnesses: {error.detail}") from None
    if found.kind != notes.COSIGNATURE:
        raise ConfigError(
            f"[receipt-log] witnesses: the key of {found.name} has kind {found.kind}, and "
            f"cosignatures are checked by kind {notes.COSIGNATURE}"
        )
    return found


def _json(value: Any) -> Message:
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return _reply("application/json", body)


def _text(body: str) -> Message:
    return _reply("text/plain; charset=utf-8", body)


def _reply(content_type: str, body: str) -> Message:
    return {
        "status": 200,
        "content-type": content_type,
        "cache-control": "no-store",
        "body": body,
    }
