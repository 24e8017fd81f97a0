"""What `hyperbeam status` and `top` ask a running node for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from hyperbeam import config as configuration
from hyperbeam.errors import ConfigError, HyperbeamError

SUMMARY = "/~metrics@1.0/summary"
TIMEOUT = 10.0
_LIMIT = 16 * 1024 * 1024
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def address(url: str | None, port: int | None) -> str:
    """The node's address: as given, or that of the configuration in use."""
    if url and port:
        raise ConfigError("give --url or --port, not both")
    if url:
        given = url if "://" in url else f"http://{url}"
        parts = urlsplit(given)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"--url {url}: give an address such as http://127.0.0.1:8734")
        return given.rstrip("/")
    http = configuration.load().http
    host = _ANY.get(http.host, http.host)
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"http://{host}:{port or http.port}"


def summary(base: str) -> dict[str, Any]:
    """The node's `~metrics@1.0/summary`. Raises HyperbeamError that says why there is none."""
    found = ask(base, SUMMARY)
    if not isinstance(found, dict) or "serving" not in found:
        raise strange(base)
    return found


def ask(
    base: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> Any:
    """What the node answers, as JSON; a POST where there is a body.

    Raises HyperbeamError that says why there is no answer.
    """
    opener = build_opener(ProxyHandler({}))
    request = Request(base + path, body, {"accept": "application/json", **(headers or {})})
    try:
        with opener.open(request, timeout=TIMEOUT) as reply:
            found = json.loads(reply.read(_LIMIT))
    except HTTPError as error:
        with error:
            said = _said(error.read(_LIMIT))
        raise HyperbeamError(f"{base} answers {error.code}: {said or error.reason}") from None
    except URLError as error:
        raise HyperbeamError(f"no node answers at {base}: {_reason(error.reason)}") from None
    except (OSError, HTTPException) as error:
        raise HyperbeamError(f"no node answers at {base}: {_reason(error)}") from None
    except ValueError:
        raise strange(base) from None
    return _plain(found)


def strange(base: str) -> HyperbeamError:
    """What is said of an answer that is no summary, or one of another version."""
    return HyperbeamError(
        f"what answers at {base} is no node of this kind, or one of another version"
    )


def _plain(value: Any) -> Any:
    """`value` without what would act on a terminal."""
    if isinstance(value, str):
        return "".join(one if one.isprintable() else "?" for one in value)
    if isinstance(value, dict):
        return {_plain(name): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _said(body: bytes) -> str:
    try:
        value = json.loads(body)
    except ValueError:
        return ""
    said = value.get("body") if isinstance(value, dict) else None
    return said if isinstance(said, str) else ""


def _reason(error: object) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
