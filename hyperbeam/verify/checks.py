"""What a verification says: a list of checks, each with its own reason and the claim's source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import BadRequest

Result = Literal["pass", "fail", "unknown"]
Source = Literal["hardware", "hashed", "declared", "operator", "unknown"]


class Malformed(BadRequest):
    """What cannot be read as what it claims to be. `reason` is a stable kebab-case word."""

    error = "malformed"

    def __init__(self, detail: str, reason: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    `name` and `reason` are stable kebab-case words for programs, `detail` a sentence for
    the reader. `source`: who says what a pass rests on.
    """

    name: str
    result: Result
    detail: str = ""
    reason: str = ""
    source: Source = "unknown"

    def as_dict(self) -> dict[str, Any]:
        """The check as JSON has it; empty words are left out."""
        words = {"detail": self.detail, "reason": self.reason, "source": self.source}
        return {"name": self.name, "result": self.result, **{k: v for k, v in words.items() if v}}


@dataclass(slots=True)
class Checks:
    """Checks in the order they were made."""

    items: list[Check] = field(default_factory=list)

    def passed(self, name: str, detail: str = "", source: Source = "unknown") -> None:
        """Add a check that passed."""
        self.items.append(Check(name, "pass", detail, "", source))

    def failed(self, name: str, reason: str, detail: str = "", source: Source = "unknown") -> None:
        """Add a check that failed."""
        self.items.append(Check(name, "fail", detail, reason, source))

    def unknown(self, name: str, reason: str, detail: str = "", source: Source = "unknown") -> None:
        """Add a check that could not be made."""
        self.items.append(Check(name, "unknown", detail, reason, source))

    def reason(self) -> str:
        """The first failure's reason, or "" where nothing failed."""
        return next((check.reason for check in self.items if check.result == "fail"), "")

    def ok(self, name: str) -> bool:
        """Whether the check `name` was made and every one of that name passed."""
        found = [check.result for check in self.items if check.name == name]
        return bool(found) and all(result == "pass" for result in found)
