"""The text of GET /~sev_gpu@1.0/: what a pass means, and what it does not."""

from __future__ import annotations

_TEXT = """\
sev_gpu@1.0: evidence that a GPU signs, and its verification
{rule}

What a pass means
  A genuine NVIDIA GPU signed the hash of a text, after your nonce was chosen, for whoever
  had the GPU. Its certificates lead to NVIDIA's root, none of them is revoked, and its
  firmware and driver are those that NVIDIA published.

What a pass does not mean
  It does not show that the text is true, that this GPU or this model computed it, that
  confidential mode was on, or that nobody read your prompt. A GPU signs whatever its owner
  hands to it. With CPU evidence beside it (attestation.cpu, AMD SEV-SNP, and a measurement
  that you know) it also shows that this software held the keys which signed the answer.
  A node cannot vouch for itself: check what it gave you on your own machine, with
  `hyperbeam verify`, or at a node that you trust.

This node
  {state}

Get evidence over a nonce of your own (64 hexadecimal characters, chosen at random):
  NONCE=$(openssl rand -hex 32)
  curl "{url}/~sev_gpu@1.0/generate?nonce=$NONCE" > evidence.json
  The GPU does not sign your nonce itself but the SHA-256 of `challenge`, which holds it.

Have it verified (true or false; why not is in the header x-verify-reason):
  curl -i --data-binary @evidence.json "{url}/~sev_gpu@1.0/verify?nonce=$NONCE"
  curl -H "accept: application/json" --data-binary @evidence.json \\
    "{url}/~sev_gpu@1.0/verify?nonce=$NONCE"

Have an attested answer verified (post the answer to a request with "tee": true and your nonce,
every byte as it came, or its whole `attestation`; its list of evidence or its token alone is
false, `nonce-not-given`):
  curl -i --data-binary @answer.json "{url}/~sev_gpu@1.0/verify?nonce=$NONCE"

See which GPUs and which sources of evidence there are:
  curl -H "accept: application/json" "{url}/~sev_gpu@1.0/info"

On your own machine, with the key set that the node signed the answer by:
  curl "{url}/~meta@1.0/keyset" > keyset.json
  hyperbeam verify answer.json --nonce $NONCE --keyset keyset.json
"""
_TITLE = _TEXT.partition("\n")[0]


def text(url: str, state: str) -> str:
    """The explanation for the node at `url`; `state` is one sentence on what it offers."""
    return _TEXT.format(rule="=" * len(_TITLE), url=url, state=state)
