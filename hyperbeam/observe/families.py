"""The node's own metrics: names, what they mean, their labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .histogram import SECONDS, SHORT

PREFIX = "hyperbeam_"
OTHER = "other"
"""The label of everything past a label's bound."""


@dataclass(frozen=True, slots=True)
class Family:
    """A counter, or with `bounds` a histogram. The name has neither prefix nor `_total`."""

    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


COUNTERS: Mapping[str, Family] = {
    "requests": Family(
        "Requests, by the status of the reply; 499: the client left before there was one.",
        ("route", "endpoint", "status"),
    ),
    "streams": Family("Streams that were begun, by how they ended.", ("end",)),
    "tokens": Family("Tokens of prompts and of answers, as backends say.", ("model", "kind")),
    "retries": Family(
        "Tries at a node that failed, so that another was asked.", ("node", "reason")
    ),
    "attestations": Family("Attestations that were asked for.", ("outcome",)),
    "receipts": Family("Receipts, by what became of them.", ("outcome",)),
    "sent_bytes": Family("Bytes of replies' bodies."),
}
HISTOGRAMS: Mapping[str, Family] = {
    "request_seconds": Family(
        "Seconds from a request's arrival to its reply's end.", ("route", "endpoint"), SECONDS
    ),
    "first_byte_seconds": Family(
        "Seconds from a request's arrival to the first byte of its stream.", ("route",), SECONDS
    ),
    "node_first_byte_seconds": Family(
        "Seconds from asking a node to the first byte of its answer.", ("route", "node"), SECONDS
    ),
    "chunk_gap_seconds": Family("Seconds between a stream's chunks.", (), SHORT),
    "attestation_seconds": Family("Seconds until an attestation was there.", (), SECONDS),
    "event_loop_lag_seconds": Family("Seconds by which a timer fired late.", (), SHORT),
    "store_commit_seconds": Family("Seconds that a commit of the store took.", (), SHORT),
}

ENDPOINTS = (
    *("chat/completions", "completions", "embeddings", "models", "responses", "messages"),
    *("tokenize", "detokenize", "rerank", "score", "moderations", "audio/transcriptions"),
    *("audio/translations", "audio/speech", "images/generations", "images/edits"),
    *("images/variations", "messages/count_tokens"),
    *("health", "metrics", "receipt", "replay", "inference_opts"),
)
"""The values of the label `endpoint`, beside `device` (any other path that names one) and
`other`."""
DEVICE = "device"

_PLACES = ("/v1/", "/~inference@1.0/", "/~inference@1.0/v1/", "/")
_BY_PATH = {place + name: name for place in _PLACES for name in ENDPOINTS}
_BY_START = {f"{place}{name}/": name for place in _PLACES[:3] for name in ("models", "receipt")}


def endpoint(path: str) -> str:
    """The endpoint of a request's path (its query is dropped)."""
    found = _BY_PATH.get(path)
    if found is not None:
        return found
    bare = path.partition("?")[0].rstrip("/")
    found = _BY_PATH.get(bare)
    if found is not None:
        return found
    if bare.startswith(_PLACES[:2]):
        return next((name for start, name in _BY_START.items() if bare.startswith(start)), OTHER)
    if bare.startswith("/~metrics@"):
        return "metrics"
    return DEVICE if bare.startswith("/~") else OTHER
