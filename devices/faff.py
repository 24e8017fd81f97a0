"""faff@1.0: friends and family: only signers on a list are served. Source: upstream dev_faff."""

from __future__ import annotations

from typing import Any

import msgspec

from hyperbeam import BadRequest, Device, Forbidden, Message, key
from hyperbeam.codecs.siginfo import OF_REPLIES


class FaffConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`[faff]`: who is served."""

    allow: tuple[str, ...] = ()
    """Addresses (43 characters) whose signed requests are served."""


class Faff(Device):
    """An allow list of signers: `[hooks] request = "faff@1.0"`."""

    name = "faff@1.0"
    Config = FaffConfig

    async def start(self) -> None:
        self._allow = frozenset(self.config.allow)

    @key
    async def request(self, base: Any, request: Message) -> Message:
        """As a `request` hook: 403 unless the request is signed, and by addresses on the list."""
        if "request" not in request:
            raise BadRequest("faff@1.0/request is for the hook `request`", param="request")
        if not self._admits(request):
            raise Forbidden("this node serves only those on its list: sign with a key on it")
        return {"body": request.get("body")}

    @key
    async def estimate(self, base: Any, request: Message) -> int | str:
        """What the request costs its signers: 0, or `infinity` for those who are not served."""
        return 0 if self._admits(request) else "infinity"

    @key
    async def charge(self, base: Any, request: Message) -> bool:
        """Nothing is charged: true."""
        return True

    def _admits(self, request: Message) -> bool:
        private = request.get("priv") or {}
        signers = private.get("signers") or ()
        if OF_REPLIES.intersection(private.get("committed") or ()):
            return False
        return bool(signers) and self._allow.issuperset(signers)
