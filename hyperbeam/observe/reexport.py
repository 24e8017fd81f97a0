"""A backend's own metrics, read with care and given on under their own names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .exposition import openmetrics
from .families import PREFIX

if TYPE_CHECKING:
    from prometheus_client import Metric

LIMIT = 4 * 1024 * 1024
"""Bytes of a backend's page."""
LINES = 20_000
LABEL = "node"

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\n"])*"'
_NUMBER = r"(?:[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?Inf|NaN)"
_SAMPLE = re.compile(
    rf"(?P<name>{_NAME})(?P<labels>\{{(?:{_LABEL}(?:,{_LABEL})*,?)?\}})? +(?P<value>{_NUMBER})"
    r"(?: +-?[0-9]+)?\Z"
)
_TYPE = re.compile(rf"# TYPE (?P<name>{_NAME}) (?:counter|gauge|histogram|summary|untyped)\Z")
_HELP = re.compile(rf"# HELP (?P<name>{_NAME}) ?(?P<help>[^\n]*)\Z")


def families(page: bytes, node: str) -> list[Metric]:
    """The metrics of `page` (text format 0.0.4), each sample with the label `node`.

    Lines that are none, families that OpenMetrics cannot hold and names of this node's own
    are left out. A label of that name becomes `exported_node`, as Prometheus has it.
    """
    from prometheus_client import Metric
    from prometheus_client.parser import text_string_to_metric_families

    try:
        read = list(text_string_to_metric_families(_sound(page)))
    except (ValueError, KeyError, IndexError):
        return []
    found: dict[str, Metric] = {}
    for family in read:
        metric = found.get(family.name)
        if metric is None:
            kind = "unknown" if family.type == "untyped" else family.type
            metric = found[family.name] = Metric(family.name, family.documentation, kind)
        elif metric.type != family.type:
            continue
        for sample in family.samples:
            labels = dict(sample.labels)
            if LABEL in labels:
                labels[f"exported_{LABEL}"] = labels.pop(LABEL)
            metric.add_sample(sample.name, {LABEL: node, **labels}, sample.value)
    return [metric for metric in found.values() if metric.samples and _is_sound(metric)]


def _sound(page: bytes) -> str:
    """The lines that are what they should be."""
    kept: list[str] = []
    for line in page.decode("utf-8", "replace").split("\n")[:LINES]:
        line = line.strip(" \t\r")
        match = _SAMPLE.match(line) or _TYPE.match(line) or _HELP.match(line)
        if match is None or match["name"].startswith(PREFIX):
            continue
        kept.append(line)
    return "\n".join(kept) + "\n"


def _is_sound(metric: Metric) -> bool:
    """Whether a strict reader takes it: else one odd family would cost the whole page."""
    from prometheus_client.openmetrics import parser

    read: Any = parser.text_string_to_metric_families
    try:
        return bool(list(read(openmetrics([metric]).decode())))
    except (ValueError, KeyError, IndexError, TypeError):
        return False
