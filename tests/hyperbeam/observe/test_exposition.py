from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_strictly
from prometheus_client.parser import text_string_to_metric_families as read

from hyperbeam.observe.exposition import Gauge, render
from hyperbeam.observe.families import COUNTERS, HISTOGRAMS, PREFIX
from hyperbeam.observe.reexport import families

from .test_metrics import filled

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"

SGLANG = b"""\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="Qwen \\"3\\"",tp_rank="0"} 2.0
# HELP sglang:prompt_tokens_total Number of prefill tokens processed.
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="q"} 128.0
# HELP sglang:time_to_first_token_seconds Histogram of time to first token.
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_sum{model_name="q"} 1.5
sglang:time_to_first_token_seconds_bucket{le="0.1",model_name="q"} 1.0
sglang:time_to_first_token_seconds_bucket{le="+Inf",model_name="q"} 3.0
sglang:time_to_first_token_seconds_count{model_name="q"} 3.0
# TYPE gpu_memory gauge
gpu_memory{node="0"} 7 1700000000000
"""


def values(body: bytes, reader: Any = read) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in reader(body.decode())
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("accept", "reader", "content_type"),
    [("", read, "text/plain"), (OPENMETRICS, read_strictly, "application/openmetrics-text")],
)
async def test_the_page_is_what_prometheus_reads(
    accept: str, reader: Any, content_type: str
) -> None:
    gauges = [Gauge("node_state", "State.", ("node",), [(('http://"x"\n\\',), 1.0)])]
    body, said = render(filled().snapshot(), gauges, families(SGLANG, "local"), accept)
    assert said.startswith(content_type)
    found = values(body, reader)
    labels = frozenset({"route": "r", "endpoint": "models", "status": "200"}.items())
    assert found["hyperbeam_requests_total", labels] == 2
    labels = frozenset({"route": "r", "endpoint": "models"}.items())
    assert found["hyperbeam_request_seconds_count", labels] == 2
    assert found["hyperbeam_request_seconds_sum", labels] == pytest.approx(0.02)
    assert found["hyperbeam_request_seconds_bucket", labels | {("le", "0.01")}] == 2
    assert found["hyperbeam_request_seconds_bucket", labels | {("le", "0.005")}] == 0
    assert found["hyperbeam_in_flight", frozenset()] == 3
    assert found["hyperbeam_node_state", frozenset({("node", 'http://"x"\n\\')})] == 1
    names = {name for name, _ in found}
    assert {f"{PREFIX}{name}_total" for name in COUNTERS} <= names
    assert {f"{PREFIX}{name}_count" for name in HISTOGRAMS} <= names
    assert "hyperbeam_process_cpu_seconds_total" in names
    model = frozenset({("node", "local"), ("model_name", "q")})
    assert found["sglang:prompt_tokens_total", model] == 128
    assert found["sglang:time_to_first_token_seconds_count", model] == 3
    assert found["gpu_memory", frozenset({("node", "local"), ("exported_node", "0")})] == 7


@pytest.mark.parametrize(
    "page",
    [
        b"hyperbeam_requests_total 5",
        b"no sample at all",
        b'open{a="b} 1',
        b"number one",
        b"\xff\xfe 1",
        b'# TYPE h histogram\nh_bucket{le="1"} 5\nh_count 3',
        b"# TYPE c_total counter\nc_total -1",
    ],
)
def test_what_is_no_metric_of_the_backends_is_left_out(page: bytes) -> None:
    lines = page + b"\n# TYPE good gauge\ngood 1\n"
    assert [family.name for family in families(lines, "local")] == ["good"]


TOKENS = st.sampled_from(
    ["# TYPE ", "# HELP ", "a", "b_total", "a_bucket", "{", "}", 'le="', '"', ",", " ", "1", "-2",
     "NaN", "+Inf", "counter", "histogram", "gauge", "summary", "\n", "\\", "é", "e", "\r", "\t"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(TOKENS, max_size=40).map("".join))
def test_no_page_of_a_backend_spoils_the_whole(page: str) -> None:
    found = families(page.encode(), "local")
    empty: Any = {"counters": {}, "histograms": {}, "gauges": {}, "processes": []}
    body, _ = render(empty, [], found, OPENMETRICS)
    list(read_strictly(body.decode()))
    body, _ = render(empty, [], found, "")
    list(read(body.decode()))
