"""Values and refusals as bytes between the processes of a node: msgpack with ext types.

Unlike the store's form this one is never kept, and holds whatever a request carries: private
keys, tuples, sets, half surrogate pairs.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import msgpack

from .. import errors
from ..errors import HyperbeamError
from ..message import Atom, Link

ATOM, LINK, INTEGER, TUPLE, SET = 1, 2, 3, 4, 5
_SURROGATES = "surrogatepass"
_KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, HyperbeamError)
}


def pack(value: Any) -> bytes:
    """The bytes of a value. TypeError for what another process cannot be given."""
    packed: bytes = msgpack.packb(
        value, default=_extended, strict_types=True, unicode_errors=_SURROGATES
    )
    return packed


def unpack(data: bytes) -> Any:
    """The value in `data`, which `pack` wrote."""
    return msgpack.unpackb(
        data, ext_hook=_value_of, strict_map_key=False, unicode_errors=_SURROGATES
    )


def describe_error(error: HyperbeamError) -> dict[str, Any]:
    """What `error_of` makes the same refusal of."""
    kind = next(kind for kind in type(error).__mro__ if kind in _KINDS.values())
    return {
        "kind": kind.__name__,
        "status": error.status,
        "error": error.error,
        "detail": error.detail,
        "param": error.param,
        "headers": error.headers,
    }


def error_of(said: Mapping[str, Any]) -> HyperbeamError:
    """A refusal of another process: of the same kind as far as `hyperbeam.errors` has it."""
    kind = _KINDS.get(said["kind"], HyperbeamError)
    # Past the kind's own arguments: all that they do has been done.
    error = kind.__new__(kind)
    HyperbeamError.__init__(
        error,
        said["detail"],
        error=said["error"],
        status=said["status"],
        param=said["param"],
        headers=said["headers"],
    )
    if isinstance(error, errors.NotFound):
        error.name = ""
    return error


def _extended(value: Any) -> Any:
    if isinstance(value, tuple):
        return msgpack.ExtType(TUPLE, pack([*value]))
    if isinstance(value, Atom):
        return msgpack.ExtType(ATOM, value.encode("utf-8", _SURROGATES))
    if isinstance(value, Link):
        return msgpack.ExtType(LINK, value.id.encode())
    if isinstance(value, frozenset | set):
        return msgpack.ExtType(SET, pack([*value]))
    if isinstance(value, int):
        size = value.bit_length() // 8 + 1
        return msgpack.ExtType(INTEGER, value.to_bytes(size, "big", signed=True))
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"a {type(value).__name__} cannot be given to another process of the node")


def _value_of(code: int, payload: bytes) -> Any:
    if code == TUPLE:
        return tuple(unpack(payload))
    if code == ATOM:
        return Atom(payload.decode("utf-8", _SURROGATES))
    if code == LINK:
        return Link(payload.decode())
    if code == SET:
        return frozenset(unpack(payload))
    if code == INTEGER:
        return int.from_bytes(payload, "big", signed=True)
    raise ValueError(f"ext type {code} of {len(payload)} bytes")
