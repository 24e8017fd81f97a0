"""What may stand in `messages`, `tools` and `response_format` of a chat request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import rules

ROLES = ("system", "assistant", "user", "function", "tool", "developer")
MEDIA_PARTS = frozenset(
    {"image_url", "input_image", "input_audio", "audio_url", "video_url", "file"}
)
TOOL_CHOICES = ("none", "auto", "required")


def check_messages(messages: Any) -> None:
    """`messages`: a list of at least one object with a known role and a text content."""
    if messages is None:
        raise rules.missing("messages")
    if not isinstance(messages, list):
        raise rules.wrong_type("messages", "an array of objects", messages)
    if not messages:
        raise rules.empty_array("messages")
    for n, message in enumerate(messages):
        _check_message(message, f"messages[{n}]")


def _check_message(message: Any, param: str) -> None:
    if not isinstance(message, dict):
        raise rules.wrong_type(param, "an object", message)
    role = message.get("role")
    if role is None:
        raise rules.missing(f"{param}.role")
    if not isinstance(role, str):
        raise rules.wrong_type(f"{param}.role", "a string", role)
    if role not in ROLES:
        raise rules.wrong_value(f"{param}.role", role, ROLES)
    for name in ("name", "tool_call_id", "refusal", "reasoning_content"):
        rules.string(message, name, f"{param}.{name}")
    if role == "tool" and message.get("tool_call_id") is None:
        raise rules.missing(f"{param}.tool_call_id")
    _check_tool_calls(message.get("tool_calls"), f"{param}.tool_calls")
    _check_content(message, role, f"{param}.content")


def _check_content(message: Mapping[str, Any], role: str, param: str) -> None:
    content = message.get("content")
    if content is None:
        if role == "assistant" and message.get("tool_calls"):
            return
        if "content" not in message:
            raise rules.missing(param)
        raise rules.refuse(
            param, f"Invalid value for '{param}': expected a string, got null.", "invalid_type"
        )
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise rules.wrong_type(param, "one of a string or array of objects", content)
    if not content:
        raise rules.empty_array(param)
    for n, part in enumerate(content):
        _check_part(part, f"{param}[{n}]")


def _check_part(part: Any, param: str) -> None:
    if not isinstance(part, dict):
        raise rules.wrong_type(param, "an object", part)
    kind = part.get("type")
    if kind is None:
        raise rules.missing(f"{param}.type")
    if not isinstance(kind, str):
        raise rules.wrong_type(f"{param}.type", "a string", kind)
    if kind in MEDIA_PARTS:
        raise rules.refuse(
            f"{param}.type",
            f"Invalid content type '{kind}' in '{param}': this model reads text only.",
            "invalid_value",
        )
    if kind != "text":
        raise rules.wrong_value(f"{param}.type", kind, ("text",))
    if part.get("text") is None:
        raise rules.missing(f"{param}.text")
    rules.string(part, "text", f"{param}.text")


def _check_tool_calls(calls: Any, param: str) -> None:
    if calls is None:
        return
    if not isinstance(calls, list):
        raise rules.wrong_type(param, "an array of objects", calls)
    for n, call in enumerate(calls):
        where = f"{param}[{n}]"
        if not isinstance(call, dict):
            raise rules.wrong_type(where, "an object", call)
        rules.string(call, "id", f"{where}.id")
        function = _function_of(call, where)
        if function.get("arguments") is None:
            raise rules.missing(f"{where}.function.arguments")
        rules.string(function, "arguments", f"{where}.function.arguments")


def _function_of(value: Mapping[str, Any], param: str) -> Mapping[str, Any]:
    """The `function` object of a tool, a tool call or a tool choice, with its name checked."""
    kind = value.get("type")
    if kind is None:
        raise rules.missing(f"{param}.type")
    if kind != "function":
        raise rules.wrong_value(f"{param}.type", kind, ("function",))
    function = value.get("function")
    if function is None:
        raise rules.missing(f"{param}.function")
    if not isinstance(function, dict):
        raise rules.wrong_type(f"{param}.function", "an object", function)
    if function.get("name") is None:
        raise rules.missing(f"{param}.function.name")
    rules.string(function, "name", f"{param}.function.name")
    return function


def check_tools(fields: Mapping[str, Any]) -> None:
    """`tools` and `tool_choice`: functions only, and a choice among those that are there."""
    tools = fields.get("tools")
    names: list[str] = []
    if tools is not None:
        if not isinstance(tools, list):
            raise rules.wrong_type("tools", "an array of objects", tools)
        for n, tool in enumerate(tools):
            if not isinstance(tool, dict):
                raise rules.wrong_type(f"tools[{n}]", "an object", tool)
            function = _function_of(tool, f"tools[{n}]")
            rules.string(function, "description", f"tools[{n}].function.description")
            rules.mapping(function, "parameters", f"tools[{n}].function.parameters")
            names.append(function["name"])
    choice = fields.get("tool_choice")
    if choice is None or choice in ("none", "auto"):
        return
    if not isinstance(choice, (str, dict)):
        raise rules.wrong_type("tool_choice", "one of a string or object", choice)
    if isinstance(choice, str) and choice not in TOOL_CHOICES:
        raise rules.wrong_value("tool_choice", choice, TOOL_CHOICES)
    if not names:
        raise rules.refuse(
            "tool_choice",
            "Invalid value for 'tool_choice': "
            "'tool_choice' is only allowed when 'tools' are specified.",
            "invalid_value",
        )
    if isinstance(choice, dict):
        name = _function_of(choice, "tool_choice")["name"]
        if name not in names:
            raise rules.wrong_value("tool_choice.function.name", name, names)


def check_response_format(fields: Mapping[str, Any]) -> None:
    """`response_format`: text, a JSON object, or a JSON schema."""
    rules.mapping(fields, "response_format")
    wanted = fields.get("response_format")
    if wanted is None:
        return
    kind = wanted.get("type")
    if kind is None:
        raise rules.missing("response_format.type")
    if kind not in ("text", "json_object", "json_schema"):
        raise rules.wrong_value(
            "response_format.type", kind, ("text", "json_object", "json_schema")
        )
    if kind == "json_schema":
        rules.mapping(wanted, "json_schema", "response_format.json_schema")
        schema = wanted.get("json_schema")
        if schema is None:
            raise rules.missing("response_format.json_schema")
        if schema.get("schema") is None:
            raise rules.missing("response_format.json_schema.schema")
        rules.mapping(schema, "schema", "response_format.json_schema.schema")
