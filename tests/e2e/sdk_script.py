"""Run by test_sdk.py: what a user of the openai SDK does. Arguments: base URL, major version."""

from __future__ import annotations

import asyncio
import sys

import openai

ASK = [{"role": "user", "content": "What is the capital of France?"}]
MODEL = "smollm2-135m-instruct"


def refused(kind: type[Exception], **arguments: object) -> Exception:
    try:
        client.chat.completions.create(**{"model": MODEL, "messages": ASK, **arguments})
    except kind as error:
        return error
    raise AssertionError(f"{arguments} was not refused")


async def many(base: str) -> None:
    async with openai.AsyncOpenAI(base_url=base, api_key="none") as clients:
        replies = await asyncio.gather(
            *(
                clients.chat.completions.create(model="any", messages=ASK, max_tokens=4)
                for _ in range(16)
            )
        )
        assert len({reply.choices[0].message.content for reply in replies}) == 1
        stream = await clients.chat.completions.create(model="any", messages=ASK, stream=True)
        async for _ in stream:
            break
        await stream.close()


base, major = sys.argv[1:]
assert openai.__version__.startswith(f"{major}."), openai.__version__
client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)

reply = client.chat.completions.create(model="qwen/qwen2.5-0.5b-instruct", messages=ASK)
assert "Paris" in reply.choices[0].message.content
assert reply.model == MODEL
assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens

raw = client.chat.completions.with_raw_response.create(
    model=MODEL, messages=ASK, extra_body={"top_k": 5, "min_p": 0.1, "never_heard_of": {"a": [1]}}
)
assert raw.headers["x-seed"].isdigit()
assert raw.parse().choices

text, usage = "", None
with client.chat.completions.create(
    model=MODEL, messages=ASK, stream=True, stream_options={"include_usage": True}
) as stream:
    for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
assert text == reply.choices[0].message.content
assert usage.completion_tokens == reply.usage.completion_tokens

legacy = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=4)
assert legacy.choices[0].text
parts = client.completions.create(model=MODEL, prompt="The sea", max_tokens=4, stream=True)
assert "".join(part.choices[0].text for part in parts if part.choices)
several = client.completions.create(model=MODEL, prompt=["One", "Two"], max_tokens=3)
assert [choice.index for choice in several.choices] == [0, 1]

assert [model.id for model in client.models.list()] == [MODEL]
assert client.models.retrieve(MODEL).id == MODEL
try:
    client.models.retrieve("qwen/qwen2.5-0.5b-instruct")
except openai.NotFoundError as error:
    assert error.code == "model_not_found"
else:
    raise AssertionError("an unknown model was found")

assert refused(openai.BadRequestError, messages=[]).param == "messages"
assert refused(openai.BadRequestError, max_tokens=0).param == "max_tokens"
assert refused(openai.BadRequestError, seed=-1).param == "seed"
long = [{"role": "user", "content": "word " * 40_000}]
assert refused(openai.BadRequestError, messages=long).code == "context_length_exceeded"
assert refused(openai.BadRequestError, messages=long, stream=True).code == "context_length_exceeded"
assert refused(openai.InternalServerError, extra_body={"tee": True}).status_code == 503

with client.chat.completions.create(
    model=MODEL, messages=ASK, stream=True, max_tokens=1500, extra_body={"ignore_eos": True}
) as stream:
    next(iter(stream))
assert client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=2).choices

asyncio.run(many(base))
print("all done")
