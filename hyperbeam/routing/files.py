"""Where the route table is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..config import Config


def routes_file(config: Config) -> Path:
    """The route table in use: the config's, the working folder's, the checkout's, the default's."""
    if config.routes:
        return Path(config.routes)
    package = Path(__file__).parents[1]
    for path in (Path("routes.toml"), package.parent / "routes.toml"):
        if path.is_file() and (path.parent == Path() or (path.parent / "pyproject.toml").is_file()):
            return path
    return package / "routing" / "routes.toml"
