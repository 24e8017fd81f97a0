"""API keys in front of the device: what their limits hold back."""

import json
from typing import Any

import pytest

from hyperbeam.access import Access, KeyStore, Quota
from hyperbeam.config import AccessConfig
from hyperbeam.routing import RouteNode
from hyperbeam.serve.counters import LocalCounters
from hyperbeam.store import MemoryStore

from .dummy import MODEL, Call, Dummy, chat_events
from .room import Room, body, drain, refusal

CHAT = {"messages": [{"role": "user", "content": "x"}]}
REMAINING = "x-ratelimit-remaining-tokens"


class Doors:
    """The room's keys. `sending` gives the private part of a request with one."""

    def __init__(self, room: Room) -> None:
        store = MemoryStore()
        self.keys = KeyStore(store)
        room.node.access = Access(AccessConfig(), store, LocalCounters())

    def sending(self, name: str, **limits: Any) -> dict[str, Any]:
        secret, _ = self.keys.add(name, **limits)
        return {"headers": {"authorization": f"Bearer {secret}"}, "target": "/x", "client": "::1"}


@pytest.fixture
def doors(room: Room) -> Doors:
    return Doors(room)


async def test_a_key_is_for_the_model_that_answers_not_for_a_name(room: Room, doors: Doors) -> None:
    other = doors.sending("ada", models=("other",))
    error = await refusal(room.post("chat/completions", {**CHAT, "model": "other"}, priv=other))
    assert (error.status, error.error) == (403, "model_not_allowed")
    own = doors.sending("eve", models=(MODEL,))
    assert (await room.post("chat/completions", {**CHAT, "model": MODEL}, priv=own))["body"]


async def test_replays_are_under_the_keys_limits_and_its_owners(room: Room, doors: Doors) -> None:
    ada = doors.sending("ada", tokens=Quota(1000, 86400))
    sent = json.dumps(CHAT).encode()
    reply = await room.post("chat/completions", sent, priv=ada)
    receipt = body(await room.get(f"receipt/{reply['x-receipt-id']}", priv=ada))
    question = {"receipt": receipt, "request": sent.decode()}
    other = doors.sending("eve", models=("other",))
    assert (await refusal(room.post("replay", question, priv=other))).status == 403
    replayed = await room.post("replay", question, priv=ada)
    its = f"receipt/{replayed['x-receipt-id']}"
    assert (await refusal(room.get(its, priv=doors.sending("bob")))).status == 404
    assert (await room.get(its, priv=ada))["body"]
    left = await room.post("chat/completions", sent, priv=ada)
    used = sum(body(reply)["usage"][kind] for kind in ("prompt_tokens", "completion_tokens"))
    assert int(left[REMAINING]) == 1000 - 2 * used


@pytest.mark.parametrize("leaves", [True, False])
async def test_streams_that_nobody_counts_are_estimated(
    room: Room, dummy: Dummy, doors: Doors, leaves: bool
) -> None:
    async def script(call: Call) -> None:
        await call.begin()
        for event in chat_events("one", " two", " three", usage=False):
            await call.event(event)
        await call.done()

    dummy.script = script
    room.use(RouteNode(id="far", prefix=dummy.url))
    ada = doors.sending("ada", tokens=Quota(1000, 86400))
    sent = json.dumps({**CHAT, "stream": True}).encode()
    stream = await room.post("chat/completions", sent, priv=ada)
    if leaves:
        stream.observer.sent(b"".join([data async for data in stream.source][:1]))
        await stream.aclose()
    else:
        await drain(stream)
    again = await room.post("chat/completions", sent, priv=ada)
    await again.aclose()
    counted = 1000 - int(again.headers[REMAINING])
    assert len(sent) // 4 + 1 <= counted <= len(sent) // 4 + 3


async def test_a_form_cannot_name_two_models(room: Room, dummy: Dummy, doors: Doors) -> None:
    room.use(RouteNode(id="far", prefix=dummy.url, models=("small", "big")))
    ada = doors.sending("ada", models=("small",))
    kind = "multipart/form-data; boundary=B"

    def form(*models: str) -> bytes:
        head = 'content-disposition: form-data; name="model"'
        return ("".join(f"--B\r\n{head}\r\n\r\n{one}\r\n" for one in models) + "--B--").encode()

    for models, status in ((("small", "big"), 400), (("big",), 403), ((), 403)):
        body = form(*models) if models else b"--B\r\n\r\n--B--"
        asked = room.call(
            "POST", "audio/transcriptions", body=body, priv=ada, **{"content-type": kind}
        )
        assert (await refusal(asked)).status in (status, 400)
    assert dummy.calls == []
