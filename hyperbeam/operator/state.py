"""What a node remembers of its operator, in the home folder.

`{operator, permanent, settings: {name: value}, history: [...], nonces: {nonce: until}}`; written
whole and synced before anything of it counts, so that no order is taken twice and none that was
answered is lost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError, HyperbeamError
from ..home import write_whole

FILE = "operator.json"
MAX_HISTORY = 1000
"""Changes that are remembered, the last ones."""


class State(msgspec.Struct):
    """`nonces`: until when (milliseconds) each is remembered. `forgotten`: the time of the latest
    order whose nonce is not: none of then or before counts, though the clock be set back."""

    operator: str = ""
    permanent: bool = False
    settings: dict[str, Any] = {}
    history: list[dict[str, Any]] = []
    nonces: dict[str, int] = {}
    forgotten: int = 0


def load(home: Path) -> State:
    """Raises ConfigError for a file that cannot be read: without it orders could be replayed."""
    path = home / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return State()
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def save(home: Path, state: State) -> None:
    """Raises HyperbeamError 507 where the disk does not take it."""
    try:
        write_whole(home / FILE, msgspec.json.format(msgspec.json.encode(state)))
    except OSError as error:
        raise HyperbeamError(
            f"nothing was changed: the home folder cannot be written: {error.strerror}",
            status=507,
            error="disk_full",
        ) from None
