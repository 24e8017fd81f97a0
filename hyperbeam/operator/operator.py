"""The node's operator: who it is, and the one way in which a running node is changed."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .. import commitments
from ..errors import BadRequest, ConfigError, Forbidden, HyperbeamError
from ..message import Message, is_id
from ..registry import section_names
from ..routing import routes_file
from . import orders, settings, state
from .orders import Order
from .routes import appended

if TYPE_CHECKING:
    from ..config import Config
    from ..node import Node

BOARD = "operator"
PERMANENT = "permanent"

Elsewhere = Callable[[list[Any]], Awaitable[Any]]

log = logging.getLogger("hyperbeam.node")


class Operator:
    """Takes the operator's orders. Of a node of several processes it works in the supervisor;
    `elsewhere`, in the others, asks it there.

    `apply` has new settings count in every process; it raises what is wrong with them, and then
    nothing has changed. `token` claims a node that has no operator, once; None where it has one.
    """

    def __init__(self, node: Node, apply: Callable[[Config], Awaitable[None]]) -> None:
        self.elsewhere: Elsewhere | None = None
        self.apply = apply
        self.token: str | None = None
        self._node = node
        self._hash = b""
        self._state = state.State()
        self._lock = asyncio.Lock()
        self._obeyed: set[asyncio.Task[Any]] = set()

    def open(self) -> None:
        """Read who it is; make a token where it is nobody. Raises ConfigError."""
        config = self._node.config
        if config.operator and not is_id(config.operator):
            raise ConfigError(
                f"operator = {config.operator[:100]!r}: it is an address of 43 characters, as "
                "`hyperbeam operator key` shows it"
            )
        self._state = state.load(self._home)
        if not (config.operator or self._state.operator or self._permanent):
            self.token = secrets.token_hex(16)
            self._hash = _hashed(self.token)
        self._publish()

    @property
    def address(self) -> str:
        """The operator's address, "" where the node has none."""
        return str(self._shown().get("address", ""))

    @property
    def permanent(self) -> bool:
        """Whether the settings can change no more over HTTP."""
        return bool(self._shown().get("permanent"))

    @property
    def history(self) -> list[Message]:
        """What was changed: `{time, by, what, keys}`, the last last."""
        return list(self._shown().get("history", ()))

    async def authorize(self, request: Message) -> Order:
        """The order that `request` is, taken now and never again; once for one request.

        Raises Forbidden for what is none of the operator's, for this node, or was there before.
        """
        address = self.address
        if not address:
            raise Forbidden(
                "this node has no operator; `hyperbeam operator claim` makes you that",
                error="not_claimed",
            )
        signature = orders.signature_by(request, address)
        if "order" not in signature:
            order = orders.read(request, address, self._node.identity.address)
            await self._do("take", asdict(order))
            signature["order"] = asdict(order)
        return Order(**signature["order"])

    async def claim(self, request: Message) -> Message:
        """Make who signed `request` the operator, by the token that the node printed.

        Raises Forbidden for another token, and where there is an operator.
        """
        order = orders.read(request, None, self._node.identity.address)
        await self._do("claim", asdict(order))
        return {"status": 200, "operator": order.by}

    def settings(self) -> Message:
        """The settings that can change, by dotted name, as they are."""
        return settings.values(self._node.config, self._changeable(), self._node.devices)

    async def change(self, order: Order) -> Message:
        """Change the settings that `order` has keys for, all or none. Gives their names.

        `initialized = "permanent"` among them makes this the last change.
        """
        names: list[str] = await self._do("change", asdict(order))
        return {"status": 200, "changed": names}

    async def add_route(self, order: Order) -> Message:
        """Add the route that `order` has the fields of to the end of the table."""
        count: int = await self._do("add-route", asdict(order))
        return {"status": 200, "routes": count}

    async def commit(self, order: Order, message: Message, keys: list[str] | None) -> Message:
        """`message` with a commitment by this node over `keys` (None: all)."""
        committed: Message = await self._do("commit", [message, keys])
        return committed

    async def answer(self, asked: list[Any]) -> Any:
        """What another process of the node asks for."""
        name, value = asked
        return await self._here(name, value)

    async def _do(self, name: str, value: Any) -> Any:
        if self.elsewhere is not None:
            return await self.elsewhere([name, value])
        return await self._here(name, value)

    async def _here(self, name: str, value: Any) -> Any:
        if name == "commit":
            message, keys = value
            signer = self._node.committer
            return await asyncio.to_thread(commitments.commit, message, signer, keys)
        # Whoever goes away while it is done does not leave it half done.
        task = asyncio.create_task(self._obey(name, Order(**value)), name=f"order {name}")
        self._obeyed.add(task)
        task.add_done_callback(self._obeyed.discard)
        return await asyncio.shield(task)

    async def _obey(self, name: str, order: Order) -> Any:
        async with self._lock:
            match name:
                case "take":
                    return await self._take(order)
                case "claim":
                    return await self._claim(order)
                case "change":
                    return await self._change(order)
                case "add-route":
                    return await self._add_route(order)
        raise ValueError(f"an operator has no {name!r}")

    async def _take(self, order: Order) -> None:
        now, known = orders.now(), self._state.nonces
        nonces = {nonce: until for nonce, until in known.items() if until > now}
        gone = [until - 2 * orders.WINDOW for until in known.values() if until <= now]
        forgotten = max(self._state.forgotten, *gone, 0)
        if order.time <= forgotten:
            raise Forbidden("the order is older than others were", error="stale_order")
        name = hashlib.sha256(order.nonce.encode("utf-8", "surrogatepass")).hexdigest()
        if name in nonces:
            raise Forbidden(
                "an order with this nonce was there before: each is taken once",
                error="replayed_order",
            )
        nonces[name] = order.time + 2 * orders.WINDOW
        await self._save(msgspec.structs.replace(self._state, nonces=nonces, forgotten=forgotten))

    async def _claim(self, order: Order) -> None:
        if self.token is None:
            told = f"this node has an operator, {self.address}"
            if not self.address:
                told = "this node's settings are permanent, and it has no operator"
            elif order.by == self.address:
                told = f"you are this node's operator already, {order.by}"
            else:
                told += f", and this is signed by {order.by}"
            raise Forbidden(told, error="claimed")
        given = order.keys.get("token")
        if not isinstance(given, str) or not hmac.compare_digest(_hashed(given), self._hash):
            raise Forbidden(
                "this is not the token that the node printed at its start", error="wrong_token"
            )
        await self._take(order)
        await self._record(order, "claim", {}, operator=order.by)
        self.token, self._hash = None, b""
        log.info("the node was claimed: its operator is %s", order.by)

    async def _change(self, order: Order) -> list[str]:
        self._check_open()
        wanted = dict(order.keys)
        initialized = wanted.pop("initialized", None)
        if initialized not in (None, PERMANENT):
            raise BadRequest(f"initialized can only become {PERMANENT!r}", param="initialized")
        changed = settings.flattened(wanted, self._changeable(), self._known())
        before = self._state
        kept = {**before.settings, **changed}
        try:
            config = settings.overlaid(self._node.config, changed)
            settings.check(config, changed, order.host)
            self._node.check_config(config)
        except ConfigError as error:
            raise BadRequest(error.detail, error="bad_setting") from None
        same = config == self._node.config and changed.keys() <= before.settings.keys()
        if same and initialized is None:
            return []
        words = {**changed, **({} if initialized is None else {"initialized": PERMANENT})}
        permanent = before.permanent or initialized is not None
        await self._record(order, "change", words, settings=kept, permanent=permanent)
        if changed:
            try:
                await self.apply(config)
            except BaseException as error:
                await self._undo(before)
                if isinstance(error, ConfigError):
                    raise BadRequest(error.detail, error="bad_setting") from None
                raise
        log.info("the operator has changed %s", ", ".join(words))
        return list(words)

    async def _add_route(self, order: Order) -> int:
        self._check_open()
        try:
            config = self._node.config
            table, path, write, restore = await asyncio.to_thread(
                partial(appended, named=bool(config.routes)), routes_file(config), order.keys
            )
            self._node.check_routes(table)
        except ConfigError as error:
            raise BadRequest(error.detail, error="bad_route") from None
        before = self._state
        await self._record(order, "route", order.keys)
        try:
            await asyncio.to_thread(write)
            try:
                await self._node.use_routes(table)
            except BaseException:
                await asyncio.to_thread(restore)
                raise
        except BaseException:
            await self._undo(before)
            raise
        log.info("the operator has added a route to %s", path)
        return len(table.routes)

    def _check_open(self) -> None:
        if self._permanent:
            raise Forbidden(
                "this node's settings are permanent: they change in its files alone",
                error="permanent",
            )

    async def _record(self, order: Order, what: str, keys: Message, **changes: Any) -> None:
        entry = {"time": order.time, "by": order.by, "what": what, "keys": keys}
        history = [*self._state.history, entry][-state.MAX_HISTORY :]
        await self._save(msgspec.structs.replace(self._state, history=history, **changes))

    async def _save(self, changed: state.State) -> None:
        await asyncio.to_thread(state.save, self._home, changed)
        self._state = changed
        self._publish()

    async def _undo(self, before: state.State) -> None:
        """Have what was, but for the nonces, where what was recorded could not be done."""
        undone = msgspec.structs.replace(before, nonces=self._state.nonces)
        try:
            await self._save(undone)
        except HyperbeamError as error:
            log.error("what was not done may stand in %s: %s", state.FILE, error.detail)
            self._state = undone
            self._publish()

    def _publish(self) -> None:
        shown = {
            "address": self._node.config.operator or self._state.operator,
            "permanent": self._permanent,
            "history": self._state.history,
        }
        if shown != self._shown():
            self._node.board.publish(BOARD, shown)

    def _shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = self._node.board.get(BOARD) or {}
        return shown

    def _changeable(self) -> list[str]:
        sections = {
            name.partition("@")[0]: device.changeable
            for name, device in self._node.devices.items()
            if device.changeable
        }
        return settings.changeable(sections)

    def _known(self) -> set[str]:
        """The dotted names of the devices' settings."""
        return {
            f"{section}.{field.name}"
            for name, device in self._node.devices.items()
            if device.Config is not None
            for section in section_names(name)
            for field in msgspec.structs.fields(device.Config)
        }

    @property
    def _permanent(self) -> bool:
        return self._state.permanent or self._node.config.initialized == PERMANENT

    @property
    def _home(self) -> Path:
        return self._node.home


def _hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
