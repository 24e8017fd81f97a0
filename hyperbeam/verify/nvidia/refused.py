"""A check that did not pass, on its way to the verdict."""

from __future__ import annotations


class Refused(Exception):
    """`reason`: a stable kebab-case word; `detail`: one sentence for the reader."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
