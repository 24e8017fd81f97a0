"""The model behind the node, over plain HTTP."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from .process import NodeProcess

BASES = ["/~inference@1.0", "/~inference@1.0/v1", "/v1"]
CAPITAL = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
STORY = {
    "messages": [{"role": "user", "content": "Tell me a story about the sea. " * 12}],
    "max_tokens": 24,
}
SAMPLED = {**STORY, "temperature": 1, "seed": 2**31 + 7}
PROMPT = {"prompt": "The sea is", "max_tokens": 12}


def content(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    choice = reply.json()["choices"][0]
    return choice["message"]["content"] if "message" in choice else choice["text"]


def events(reply: httpx.Response) -> list[str]:
    return [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]


def streamed(reply: httpx.Response) -> str:
    assert reply.headers["content-type"].startswith("text/event-stream")
    *parts, end = events(reply)
    assert end == "[DONE]"
    choices = [choice for part in parts for choice in json.loads(part)["choices"]]
    return "".join(c["delta"].get("content") or "" if "delta" in c else c["text"] for c in choices)


@pytest.mark.parametrize("base", BASES)
def test_chat(client: httpx.Client, base: str) -> None:
    reply = client.post(f"{base}/chat/completions", json=CAPITAL)
    assert "Paris" in content(reply)
    body = reply.json()
    assert body["object"] == "chat.completion"
    assert body["usage"]["total_tokens"] > 0
    assert body["choices"][0]["finish_reason"] == "stop"
    assert reply.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("base", BASES)
def test_completions(client: httpx.Client, base: str) -> None:
    reply = client.post(f"{base}/completions", json=PROMPT)
    assert content(reply)
    assert reply.json()["object"] == "text_completion"


@pytest.mark.parametrize("base", BASES)
def test_streams_say_the_same(client: httpx.Client, base: str) -> None:
    for path, body in (("chat/completions", CAPITAL), ("completions", PROMPT)):
        plain = content(client.post(f"{base}/{path}", json=body))
        # `stream` is part of the bytes a seed is made from; at temperature 0 it does not matter.
        assert streamed(client.post(f"{base}/{path}", json={**body, "stream": True})) == plain


@pytest.mark.parametrize("base", BASES)
def test_models(client: httpx.Client, base: str) -> None:
    listing = client.get(f"{base}/models").json()
    assert listing["object"] == "list"
    (model,) = listing["data"]
    assert model["id"] == "smollm2-135m-instruct"
    assert client.get(f"{base}/models/{model['id']}").json() == model
    missing = client.get(f"{base}/models/qwen/qwen2.5-0.5b-instruct")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/health", *(f"{base}/health" for base in BASES)])
def test_health(client: httpx.Client, path: str) -> None:
    reply = client.get(path)
    assert (reply.status_code, reply.json()["status"]) == (200, "ok")
    assert client.head(path).status_code == 200


def test_the_reply_says_which_model_ran(client: httpx.Client) -> None:
    body = {**CAPITAL, "model": "qwen/qwen2.5-0.5b-instruct"}
    reply = client.post("/~inference@1.0/chat/completions", json=body)
    assert reply.json()["model"] == "smollm2-135m-instruct"
    reply = client.post("/~inference@1.0/chat/completions", json={**body, "stream": True})
    assert {json.loads(event)["model"] for event in events(reply)[:-1]} == {"smollm2-135m-instruct"}


def test_a_request_without_a_seed_gets_one_from_its_bytes(client: httpx.Client) -> None:
    path = "/~inference@1.0/chat/completions"
    body = {**STORY, "temperature": 1}
    first, again = (client.post(path, json=body) for _ in range(2))
    other = client.post(path, json={**body, "max_tokens": 25})
    assert first.headers["x-seed"] == again.headers["x-seed"] != other.headers["x-seed"]
    assert content(first) == content(again)
    named = client.post(path, json={**body, "seed": int(first.headers["x-seed"])})
    assert named.headers["x-seed"] == first.headers["x-seed"]
    assert content(named) == content(first)
    stream = client.post(path, json={**body, "stream": True})
    assert stream.headers["x-seed"].isdigit()


def test_the_same_bytes_alone_and_beside_other_traffic(client: httpx.Client) -> None:
    path = "/~inference@1.0/chat/completions"
    asked: list[dict[str, Any]] = [STORY, SAMPLED]
    alone = [content(client.post(path, json=body)) for body in asked]
    others = [
        {"messages": [{"role": "user", "content": f"Say {n}."}], "max_tokens": 4 + n}
        for n in range(8)
    ]
    with ThreadPoolExecutor(16) as pool:
        crowd = list(
            pool.map(lambda body: client.post(path, json=body), asked + others + asked[::-1])
        )
    beside = [content(reply) for reply in crowd]
    assert beside[:2] == alone
    assert beside[-1:-3:-1] == alone


def test_16_clients_at_once(node: NodeProcess) -> None:
    def ask(n: int) -> str:
        body = {"messages": [{"role": "user", "content": f"Repeat: {n}"}], "max_tokens": 8}
        with httpx.Client(base_url=node.url, timeout=120) as client:
            if n % 2:
                return content(client.post("/v1/chat/completions", json=body))
            return streamed(client.post("/v1/chat/completions", json={**body, "stream": True}))

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(16)))


def test_unicode(client: httpx.Client) -> None:
    text = "Zażółć gęślą jaźń — 你好 👩‍🚀 \u0000 \u2028 ﷽"
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 8}
    assert content(client.post("/v1/chat/completions", json=body)) is not None


def test_usage_in_a_stream_only_where_it_is_asked_for(client: httpx.Client) -> None:
    body = {**CAPITAL, "stream": True}
    bare = client.post("/v1/chat/completions", json=body)
    assert not any(json.loads(event).get("usage") for event in events(bare)[:-1])
    asked = client.post(
        "/v1/chat/completions", json={**body, "stream_options": {"include_usage": True}}
    )
    assert json.loads(events(asked)[-2])["usage"]["completion_tokens"] > 0


def test_choices_logprobs_stop_and_schema(client: httpx.Client) -> None:
    path = "/v1/chat/completions"
    two = client.post(path, json={**CAPITAL, "n": 2, "temperature": 1}).json()
    assert [choice["index"] for choice in two["choices"]] == [0, 1]
    logged = client.post(path, json={**CAPITAL, "logprobs": True, "top_logprobs": 2}).json()
    tokens = logged["choices"][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens).strip().startswith("The capital")
    stopped = client.post(path, json={**CAPITAL, "stop": ["capital"]}).json()
    assert "capital" not in stopped["choices"][0]["message"]["content"]
    schema = {
        "type": "json_schema",
        "json_schema": {
            "name": "city",
            "schema": {
                "type": "object",
                "properties": {"city": {"enum": ["Paris", "Rome"]}},
                "required": ["city"],
            },
        },
    }
    made = client.post(path, json={**CAPITAL, "response_format": schema}).json()
    assert json.loads(made["choices"][0]["message"]["content"])["city"] in ("Paris", "Rome")


def test_attestation_is_never_pretended(client: httpx.Client) -> None:
    path = "/~inference@1.0/chat/completions"
    reply = client.post(path, json={**CAPITAL, "tee": True})
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "attestation_unavailable"
    for no in (False, "false", 0):
        reply = client.post(path, json={**CAPITAL, "tee": no})
        assert "attestation" not in reply.json()


def test_a_client_that_breaks_off_frees_the_slots(node: NodeProcess) -> None:
    endless = {
        "messages": [{"role": "user", "content": "Count."}],
        "stream": True,
        "max_tokens": 1800,
        "ignore_eos": True,
    }
    body = json.dumps(endless).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode()
    # More than there are slots: were one not freed, the answer below would wait for minutes.
    for _ in range(8):
        with socket.create_connection(("127.0.0.1", node.port), timeout=60) as raw:
            raw.sendall(head + body)
            while b"data:" not in raw.recv(65536):
                pass
    reply = httpx.post(
        node.url + "/v1/chat/completions", json={**CAPITAL, "max_tokens": 2}, timeout=30
    )
    assert content(reply)


def test_options_and_cors(client: httpx.Client) -> None:
    reply = client.options(
        "/v1/chat/completions", headers={"access-control-request-headers": "authorization, x-a"}
    )
    assert reply.status_code == 204
    assert reply.headers["access-control-allow-headers"] == "authorization, x-a"
    assert "POST" in reply.headers["access-control-allow-methods"]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/",
        "/v1/chat",
        "/~inference@1.0",
        "/~inference@1.0/",
        "/~inference@1.0/v1",
        "/~inference@1.0/chat",
        "/v1/chat/completions/chat/completions",
        "/v1/chat/completions/body",
        "/v1/completions/x",
        "/~inference@1.0/health/x",
        "/v1/v1/models",
        "/v1/chat/models",
    ],
)
def test_what_is_no_endpoint_is_404_before_any_work(
    client: httpx.Client, path: str, method: str
) -> None:
    body = {**CAPITAL, "max_tokens": 1500, "ignore_eos": True}
    reply = client.request(method, path, json=body, timeout=10)
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "unknown_url"
    assert "France" not in reply.text


@pytest.mark.parametrize(
    "path", ["//v1/models", "/v1//models", "//~inference@1.0//models/", "/v1/models/", "/health/"]
)
def test_needless_slashes_do_no_harm(client: httpx.Client, path: str) -> None:
    # httpx would take `//v1` for a host.
    assert client.get(str(client.base_url) + path).status_code == 200


def test_no_query_replaces_method_or_body(client: httpx.Client) -> None:
    path = "/v1/chat/completions"
    body = {**CAPITAL, "max_tokens": 4}
    for query in ("body=x", "1.body=x", "method=GET", "2.method=GET"):
        assert client.post(f"{path}?{query}", json=body).status_code == 200
    link = f"{path}?method=POST"
    assert client.get(link, params={"body": json.dumps(body)}).status_code == 405


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "x"])
def test_an_encoded_body_is_refused_by_name(client: httpx.Client, encoding: str) -> None:
    reply = client.post(
        "/v1/chat/completions", json=CAPITAL, headers={"content-encoding": encoding}
    )
    assert reply.status_code == 415
    assert encoding in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "limit", [{"n_predict": -1}, {"n_predict": 0}, {"n_predict": 9, "max_tokens": 1}, {"n_cmpl": 2}]
)
def test_the_engines_own_limits_are_checked_too(client: httpx.Client, limit: Any) -> None:
    reply = client.post("/v1/chat/completions", json={**CAPITAL, **limit})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] in limit
