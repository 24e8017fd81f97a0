"""Every refusal the node can give, and the one place where an HTTP status is chosen.

A key, codec or store signals trouble by raising one of these; `http/reply.py`
writes it to the client. Anything else that is raised is a bug and becomes a 500
that names nothing but an id which the log has too.
"""

from __future__ import annotations

from collections.abc import Mapping


class HyperbeamError(Exception):
    """A refusal with a status.

    `error` is a stable snake_case word for programs, `detail` one sentence for the
    reader: what was wrong, where, what to do. `param` names the field at fault.
    `headers` are added to the HTTP reply (lower-case names).
    """

    status = 500
    error = "internal_error"

    def __init__(
        self,
        detail: str = "",
        *,
        error: str | None = None,
        status: int | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        if error is not None:
            self.error = error
        if status is not None:
            self.status = status
        self.detail = detail or self.error.replace("_", " ")
        self.param = param
        self.headers: dict[str, str] = dict(headers or {})

    def __str__(self) -> str:
        return self.detail


class BadRequest(HyperbeamError):
    """400: a path, type, header or body that cannot be read."""

    status = 400
    error = "bad_request"


class Unauthorized(HyperbeamError):
    """401: a signature that is malformed or fails."""

    status = 401
    error = "unauthorized"


class Forbidden(HyperbeamError):
    """403: not the operator's signature, or an address that the relay may not reach."""

    status = 403
    error = "forbidden"


class NotFound(HyperbeamError):
    """404: no such key, id or device. The argument is the name that was looked for."""

    status = 404
    error = "not_found"

    def __init__(
        self,
        name: str = "",
        detail: str = "",
        *,
        error: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        said = detail or (f"{name[:200]!r} was not found" if name else "")
        super().__init__(said, error=error, param=param, headers=headers)
        self.name = name


class NoRoute(NotFound):
    """404: no route matches the path; the detail lists the patterns that were tried."""

    error = "no_route"


class MethodNotAllowed(HyperbeamError):
    """405: the key does not answer this HTTP method."""

    status = 405
    error = "method_not_allowed"


class TooLarge(HyperbeamError):
    """413: a body over the limit."""

    status = 413
    error = "too_large"


class BadGateway(HyperbeamError):
    """502: the backend refused the connection or died before its first byte."""

    status = 502
    error = "bad_gateway"


class Unavailable(HyperbeamError):
    """503: not ready. `retry_after` is in whole seconds."""

    status = 503
    error = "unavailable"

    def __init__(
        self,
        detail: str = "",
        *,
        retry_after: int = 1,
        error: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail, error=error, param=param, headers=headers)
        self.headers.setdefault("retry-after", str(retry_after))


class GatewayTimeout(HyperbeamError):
    """504: the backend was too slow."""

    status = 504
    error = "gateway_timeout"


class ConfigError(HyperbeamError):
    """The node cannot start as it is told to: one line and exit status 2."""

    error = "config_error"
