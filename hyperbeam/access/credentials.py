"""Whether a request may pass: its API key, that key's limits and models."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import Forbidden, HyperbeamError, Unauthorized
from ..message import Message
from ..observe.request_id import current
from .keys import ApiKey, KeyStore
from .quotas import Quota

if TYPE_CHECKING:
    from ..config import AccessConfig
    from ..serve.counters import Counters
    from ..store import Store

REMEMBERED = 1024
FRESH = 0.5
"""Seconds after which a key is looked up again: a revoked one works no longer than that."""
USAGE = b"access/usage"


class Grant:
    """That a request may pass. `id` is its key's ("" where none is needed).

    `client`: whom it counts for among those who wait. `models`: the only ones it may ask
    for; empty is any. `headers`: what the reply says of the key's limits.
    """

    __slots__ = ("_counters", "_tokens", "client", "headers", "id", "models")

    def __init__(
        self,
        client: str,
        key: ApiKey | None = None,
        tokens: Quota | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.id = key.id if key is not None else ""
        self.client = self.id or client
        self.models = key.models if key is not None else ()
        self.headers: dict[str, str] = {}
        self._tokens = tokens
        self._counters = counters

    @property
    def counts_tokens(self) -> bool:
        """Whether it matters how many tokens an answer takes."""
        return self._tokens is not None

    def require_model(self, name: str) -> None:
        """Raises Forbidden `model_not_allowed` unless the key may ask for the model `name`."""
        if self.models and name not in self.models:
            asked = f"the model {name[:200]!r}" if name else "a request that names no model"
            raise Forbidden(
                f"This API key is not for {asked}: it is for {', '.join(self.models)}.",
                error="model_not_allowed",
                param="model",
            )

    def used(self, tokens: int) -> None:
        """Count the tokens of an answer."""
        if self._tokens is not None and self._counters is not None and tokens > 0:
            self._tokens.take(self._counters, _name(self.id, "tokens"), tokens)


class _Known:
    """A key that was looked up, with its limits read."""

    __slots__ = ("key", "requests", "tokens", "until")

    def __init__(self, key: ApiKey | None, until: float) -> None:
        self.key = key
        self.until = until
        self.requests = Quota.parse(key.requests) if key is not None and key.requests else None
        self.tokens = Quota.parse(key.tokens) if key is not None and key.tokens else None


class Access:
    """Asks each request for a key where keys are required.

    Counts of all processes are in `counters`; `restore` and `save` carry what was used of
    long periods over a restart.
    """

    def __init__(self, config: AccessConfig, store: Store, counters: Counters) -> None:
        self.keys = KeyStore(store)
        self._config = config
        self._store = store
        self._counters = counters
        self._known: dict[str, _Known] = {}
        self._any = False
        self._any_until = 0.0

    def use(self, config: AccessConfig) -> None:
        """Take other settings."""
        self._config = config

    @property
    def required(self) -> bool:
        """Whether requests need a key now."""
        return self.requires(self._config)

    def requires(self, config: AccessConfig) -> bool:
        """Whether requests would need a key now by these settings."""
        wanted = config.required
        if wanted != "auto":
            return wanted == "always"
        now = time.monotonic()
        if now >= self._any_until:
            self._any = bool(self._store.list(b"access/keys"))
            self._any_until = now + FRESH
        return self._any

    def check(self, request: Message) -> Grant:
        """The grant of a request. One from inside the node needs no key.

        Raises Unauthorized `invalid_api_key`, HyperbeamError `rate_limit_exceeded` (429).
        """
        private = request.get("priv") or {}
        client = str(private.get("client", ""))
        if "target" not in private or not self.required:
            return Grant(client)
        known = self._find(_secret(private.get("headers") or {}))
        key = known.key
        if key is None or not key.works:
            raise _refused(key)
        info = current()
        if info is not None:
            info.key = key.id
        grant = Grant(client, key, known.tokens, self._counters)
        self._count(grant, known)
        return grant

    def grant_of(self, request: Message) -> Grant:
        """As `check`, for what costs nothing: it counts for no limit."""
        private = request.get("priv") or {}
        client = str(private.get("client", ""))
        if "target" not in private or not self.required:
            return Grant(client)
        key = self._find(_secret(private.get("headers") or {})).key
        if key is None or not key.works:
            raise _refused(key)
        return Grant(client, key)

    def restore(self) -> None:
        """Take what was used before this start."""
        for key in self.keys.all():
            for kind, text in (("requests", key.requests), ("tokens", key.tokens)):
                saved = self._store.read(_usage(key.id, kind)) if text else None
                if saved is None:
                    continue
                window, _, used = saved.decode().partition(" ")
                name = _name(key.id, kind)
                if int(window) == Quota.parse(text).window():
                    missing = int(used) - self._counters.window_total(name, int(window))
                    self._counters.window_add(name, int(window), max(0, missing))

    def save(self) -> None:
        """Keep what was used of each key's limits."""
        for key in self.keys.all():
            for kind, text in (("requests", key.requests), ("tokens", key.tokens)):
                if text:
                    window = Quota.parse(text).window()
                    used = self._counters.window_total(_name(key.id, kind), window)
                    if used:
                        self._store.write(_usage(key.id, kind), b"%d %d" % (window, used))

    def _find(self, secret: str) -> _Known:
        now = time.monotonic()
        known = self._known.get(secret)
        if known is None or now >= known.until:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            known = _Known(self.keys.find(secret) if secret else None, now + FRESH)
            self._known[secret] = known
        return known

    def _count(self, grant: Grant, known: _Known) -> None:
        counters = self._counters
        tokens = known.tokens
        if tokens is not None:
            left = tokens.left(counters, _name(grant.id, "tokens"))
            grant.headers |= _limits("tokens", tokens, left)
            if not left:
                raise _too_many("tokens", tokens, grant.headers)
        requests = known.requests
        if requests is not None:
            name = _name(grant.id, "requests")
            left = requests.left(counters, name)
            if not left:
                raise _too_many("requests", requests, _limits("requests", requests, 0))
            requests.take(counters, name, 1)
            grant.headers |= _limits("requests", requests, left - 1)


def _secret(headers: Mapping[str, Any]) -> str:
    """The key that a request shows: as a bearer token, or as Anthropic's clients do."""
    scheme, _, value = str(headers.get("authorization", "")).partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return str(headers.get("x-api-key", "")).strip()


def _refused(key: ApiKey | None) -> Unauthorized:
    if key is None:
        said = "There is no such API key, or none was sent"
    else:
        said = "This API key was revoked" if key.revoked else "The time of this API key is over"
    return Unauthorized(
        f"{said}. Send one as `Authorization: Bearer {'hb-...'}`; the node's operator makes them.",
        error="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )


def _too_many(kind: str, quota: Quota, headers: Mapping[str, str]) -> HyperbeamError:
    seconds = quota.resets_in()
    return HyperbeamError(
        f"This API key has used its {quota.count} {kind} of this period ({quota}); "
        f"the next begins in {seconds} s.",
        status=429,
        error="rate_limit_exceeded",
        headers={**headers, "retry-after": str(seconds)},
    )


def _limits(kind: str, quota: Quota, left: int) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{kind}": str(quota.count),
        f"x-ratelimit-remaining-{kind}": str(left),
        f"x-ratelimit-reset-{kind}": f"{quota.resets_in()}s",
    }


def _name(id: str, kind: str) -> str:
    return f"key {id} {kind}"


def _usage(id: str, kind: str) -> bytes:
    return USAGE + f"/{id}/{kind}".encode()
