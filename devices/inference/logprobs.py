"""Log probabilities in the shape that each API has.

The embedded server has chat's shape only: a list of `{token, bytes, logprob,
top_logprobs}`. Completions have parallel lists instead.
Source: OpenAI API reference, completions object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def trimmed(logprobs: Mapping[str, Any], alternatives: int) -> dict[str, Any]:
    """Chat's shape with at most `alternatives` for each token."""
    return {
        name: [
            {**entry, "top_logprobs": entry.get("top_logprobs", [])[:alternatives]}
            for entry in value
        ]
        if isinstance(value, list)
        else value
        for name, value in logprobs.items()
    }


class Legacy:
    """Turns chat's shape into the completions', over the chunks of one choice.

    `text_offset` counts characters from the start of the answer.
    """

    def __init__(self, alternatives: int) -> None:
        self._alternatives = alternatives
        self._offset = 0

    def convert(self, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """`{tokens, token_logprobs, top_logprobs, text_offset}` of the next tokens."""
        offsets: list[int] = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(str(entry.get("token", "")))
        return {
            "tokens": [_token(entry) for entry in entries],
            "token_logprobs": [entry.get("logprob") for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        tops = entry.get("top_logprobs", [])[: self._alternatives]
        return {_token(top): top.get("logprob") for top in tops}


def _token(entry: Mapping[str, Any]) -> str:
    """The token's text; as OpenAI writes it where it is but a part of a character."""
    raw = entry.get("bytes")
    if isinstance(raw, list):
        try:
            bytes(raw).decode()
        except (UnicodeDecodeError, ValueError, TypeError):
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw if isinstance(byte, int))
    return str(entry.get("token", ""))
