"""Run by test_tee.py: attested answers through the openai SDK. Arguments: base URL, nonce."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from typing import Any

import openai

base, nonce = sys.argv[1:]
client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)
ask: Any = {
    "model": "any",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "extra_body": {"tee": True, "nonce": nonce},
}


def check(attestation: Any) -> dict[str, Any]:
    raw = attestation["raw"]
    assert hashlib.sha256(raw.encode()).hexdigest() == attestation["nonce"]
    assert json.loads(base64.b64decode(attestation["token"])) == attestation["evidences"]
    said: dict[str, Any] = json.loads(raw)
    assert said["nonce"] == nonce
    assert said["model"]["by"] == "hashed"
    return said


answer = client.chat.completions.create(**ask)
assert answer.resolved_model == answer.model
text = answer.choices[0].message.content
assert (
    json.loads(check(answer.attestation)["response"]["body"])["choices"][0]["message"]["content"]
    == text
)

parts, attestations = "", []
with client.chat.completions.create(**ask, stream=True) as stream:
    for chunk in stream:
        if chunk.choices:
            parts += chunk.choices[0].delta.content or ""
        if getattr(chunk, "attestation", None):
            assert chunk.choices == []
            attestations.append(chunk.attestation)
assert parts == text
(attestation,) = attestations
assert check(attestation)["response"]["stream"] is True
sys.stdout.write("all done\n")
