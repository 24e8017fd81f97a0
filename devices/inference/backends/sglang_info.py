"""What an SGLang server says of itself, and on what of it the bytes of an answer depend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hyperbeam.declared import canonical

from .asking import Server, Trouble

READY = "/ready"
_SETTINGS = (
    "attention_backend", "chunked_prefill_size", "decode_attention_backend", "device",
    "disable_radix_cache", "dp_size", "dtype", "enable_deterministic_inference", "ep_size",
    "grammar_backend", "kv_cache_dtype", "load_format", "max_running_requests", "model_impl",
    "nnodes", "page_size", "pp_size", "prefill_attention_backend", "quantization", "random_seed",
    "reasoning_parser", "sampling_backend", "sampling_defaults", "speculative_algorithm",
    "tokenizer_mode", "tool_call_parser", "tp_size", "weight_version",
)  # fmt: skip
_MORE_FILES = (
    "decrypted_config_file", "kt_weight_path", "lora_paths", "quantization_param_path",
    "speculative_draft_model_path", "speculative_token_map", "uno_lora_path",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Info:
    """Of one server: `settings` as statements have them, the rest as it says them.

    `context`: tokens of prompt and answer together, 0 unknown. `more_files`: which of its
    options make it open files beside its model's folder.
    """

    model: str
    model_path: str
    port: int
    context: int
    deterministic: bool
    settings: dict[str, Any]
    more_files: tuple[str, ...]


async def read(server: Server) -> Info:
    """Ask a server that is ready. Raises Trouble."""
    said = await server.json("/server_info")
    if not isinstance(said.get("version"), str) or "served_model_name" not in said:
        raise Trouble("it is no SGLang server: it tells no version and model at /server_info")
    model = str(said["served_model_name"])
    loads = await server.json("/v1/loads")
    models = await server.json("/v1/models")
    settings = {name: said.get(name) for name in _SETTINGS}
    settings["engine"] = f"sglang {said['version']}"
    settings["accelerator"] = loads.get("accelerator")
    context = _context(models, model)
    settings["context"] = context
    return Info(
        model=model,
        model_path=str(said.get("model_path")),
        port=said["port"] if isinstance(said.get("port"), int) else 0,
        context=context,
        deterministic=said.get("enable_deterministic_inference") is True,
        settings=canonical(settings),
        more_files=tuple(name for name in _MORE_FILES if said.get(name)),
    )


def _context(models: Mapping[str, Any], model: str) -> int:
    for one in models.get("data") or ():
        if isinstance(one, Mapping) and one.get("id") == model:
            length = one.get("max_model_len")
            return length if isinstance(length, int) else 0
    return 0
