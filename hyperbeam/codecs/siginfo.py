"""The headers `signature` and `signature-input`: what they say, and the text that is signed.

Source: RFC 9421; upstream dev_codec_httpsig_siginfo, whose signers name the components of their
signature base otherwise than RFC 9421 does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import BadRequest
from .fields import format_string

DERIVED = frozenset(
    {
        "authority",
        "method",
        "path",
        "query",
        "query-param",
        "request-target",
        "scheme",
        "status",
        "target-uri",
    }
)
"""Components of RFC 9421 that are no headers; their names begin with `@` there."""
_OF_UPSTREAM = DERIVED - {"status"}
OF_REPLIES = frozenset({"status", "@status", "ao-result"})
"""What a node signs of each reply: anybody may have it sign the rest, as if it had asked for it."""
MAX_SIGNATURES = 8
MAX_COMPONENTS = 200

Value = Callable[[str], str | None]


class BadSignature(ValueError):
    """A signature that cannot be read, or does not hold; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Signed:
    """One signature. `components`: names as written; `parameters` in the order they came in."""

    label: str
    components: tuple[str, ...]
    parameters: Mapping[str, str | int]
    signature: bytes

    def text(self, name: str) -> str:
        """A parameter that is text, "" where there is none."""
        value = self.parameters.get(name, "")
        return value if isinstance(value, str) else ""


@dataclass(slots=True)
class Fields:
    """The two headers of several signatures."""

    signatures: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)

    def add(self, signed: Signed) -> None:
        items: list[Any] = [(name, {}) for name in signed.components]
        self.inputs[signed.label] = (items, dict(signed.parameters))
        self.signatures[signed.label] = (signed.signature, {})

    def headers(self) -> dict[str, str]:
        """`signature` and `signature-input`. Raises BadRequest for a name or parameter that is
        not ASCII, or a number past 15 digits: the two fields cannot hold it."""
        import http_sf  # takes 30 ms, and few nodes sign

        try:
            return {
                "signature": http_sf.ser(self.signatures),
                "signature-input": http_sf.ser(self.inputs),
            }
        except ValueError as error:
            raise BadRequest(
                f"the signature of a message has no form in headers: {error}"
            ) from None


def parse(signature: str, signature_input: str) -> list[Signed]:
    """What the two headers say. Raises BadSignature."""
    signatures = _dictionary("signature", signature)
    inputs = _dictionary("signature-input", signature_input)
    if signatures.keys() != inputs.keys():
        raise BadSignature("signature and signature-input do not name the same signatures")
    if not 0 < len(inputs) <= MAX_SIGNATURES:
        raise BadSignature(f"a message has 1 to {MAX_SIGNATURES} signatures, here {len(inputs)}")
    return [_signed(label, signatures[label], inputs[label]) for label in inputs]


def base(signed: Signed, value: Value) -> str:
    """The text that RFC 9421 2.5 has signed; `value` gives each component's.

    Raises BadSignature where there is none.
    """
    lines = [f'"{name}": {_value(value, name)}' for name in signed.components]
    return "\n".join([*lines, _parameters(signed.components, signed.parameters)])


def base_of_upstream(signed: Signed, value: Value) -> str:
    """As `base`, as HyperBEAM makes it: names without `@` before values, and with it in the
    parameters, which are sorted."""
    bare = [
        name[1:] if name[:1] == "@" and name[1:] in _OF_UPSTREAM else name
        for name in signed.components
    ]
    lines = [f'"{name}": {_value(value, name)}' for name in bare]
    named = [component(name) for name in bare]
    ordered = {name: signed.parameters[name] for name in sorted(signed.parameters)}
    return "\n".join(lines) + "\n" + _parameters(named, ordered)


def component(name: str) -> str:
    """The name of a key as upstream's parameters have it."""
    bare = name.removeprefix("@")
    return f"@{bare}" if bare in _OF_UPSTREAM else bare


def _value(value: Value, name: str) -> str:
    found = value(name)
    if found is None:
        raise BadSignature(f"{name[:100]!r} is signed, and not there")
    return found


def _parameters(names: Sequence[str], parameters: Mapping[str, str | int]) -> str:
    components = " ".join(format_string(name) for name in names)
    written = "".join(
        f";{name}={format_string(value) if isinstance(value, str) else value}"
        for name, value in parameters.items()
    )
    return f'"@signature-params": ({components}){written}'


def _dictionary(name: str, text: str) -> dict[str, Any]:
    import http_sf

    try:
        found = http_sf.parse(text.encode("ascii"), tltype="dictionary")
    except (ValueError, UnicodeEncodeError) as error:
        raise BadSignature(f"{name} is no dictionary of RFC 9651: {str(error)[:100]}") from None
    assert isinstance(found, dict)
    return found


def _signed(label: str, signature: Any, given: Any) -> Signed:
    items, parameters = given
    if not isinstance(items, list) or not isinstance(signature[0], bytes):
        raise BadSignature(f"{label[:100]} is no signature: a list of names, and bytes")
    if len(items) > MAX_COMPONENTS:
        raise BadSignature(f"{label[:100]} signs over {MAX_COMPONENTS} components")
    names = []
    for name, more in items:
        if type(name) is not str or more:
            raise BadSignature(f"{label[:100]}: parameters of components are not understood here")
        names.append(name)
    if len(set(names)) < len(names):
        raise BadSignature(f"{label[:100]} names a component twice")
    for name, value in parameters.items():
        if type(value) is not str and type(value) is not int:
            raise BadSignature(f"{label[:100]}: {name[:50]!r} is neither text nor a number")
    return Signed(label, tuple(names), dict(parameters), signature[0])
