"""Run by the interpreter that has nv-attestation-sdk: reads a nonce, writes evidence as JSON.

For a probe it only says whether the SDK is there, and loads nothing of it.

Imports nothing of this project, and runs on every Python that the SDK runs on.
"""

import importlib
import importlib.util
import json
import os
import sys


def collect(nonce: str) -> object:
    """The SDK's list of evidence over `nonce` (hex)."""
    sdk = importlib.import_module("nv_attestation_sdk.attestation")
    client = sdk.Attestation()
    client.set_name("hyperbeam")
    client.set_nonce(nonce)
    # In the form for its remote verifier, which is plain JSON; nothing is sent anywhere.
    client.add_verifier(sdk.Devices.GPU, sdk.Environment.REMOTE, "", "")
    try:
        return client.get_evidence(options={"ppcie_mode": False})
    except TypeError:
        return client.get_evidence()


def main() -> None:
    """Answer one request. The SDK prints to its output, so the answer has a way of its own."""
    answer_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = json.load(sys.stdin)
    try:
        if asked.get("probe"):
            found = importlib.util.find_spec("nv_attestation_sdk") is not None
            text = json.dumps({"found": found})
        else:
            text = json.dumps({"evidences": collect(asked["nonce"])})
    except BaseException as error:
        text = json.dumps({"error": f"{type(error).__name__}: {error}"})
    answer_to.write(text)
    answer_to.flush()
    # Threads that the SDK has left running must not hold up the answer.
    os._exit(0)


if __name__ == "__main__":
    main()
