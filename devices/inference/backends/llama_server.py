"""The embedded model's process: llama.cpp's own server, on a unix socket, reproducible.

`python llama_server.py --model FILE --alias NAME ...` prints one line of JSON on standard
output when it serves: `{"ready": true, "address", "pid", "engine", "cpu", "settings"}`.
Exit status 78 means that starting it again is useless; the last line of standard error
says why. `--check` only tries whether the engine can run here. Uses the standard library
and xllamacpp only: it runs by path, without the node's imports.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import json
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

USELESS = os.EX_CONFIG
NEEDED_FLAGS = ("avx2", "fma", "f16c", "bmi2")
BATCH = 64
"""Tokens a step: a client that leaves during a long prompt frees its slot after one step."""
_PR_SET_PDEATHSIG = 1
_QUIET, _TALKATIVE = 2, 3


def check() -> str | None:
    """Why the engine cannot run on this machine, with the cure; None when it can."""
    if sys.platform == "linux":
        missing = _missing_flags()
        if missing:
            return (
                f"this CPU lacks {', '.join(missing)}, which the embedded engine needs: use a "
                'machine that has AVX2, or another backend ([inference] backend = "none")'
            )
        try:
            ctypes.CDLL("libgomp.so.1")
        except OSError:
            return (
                "libgomp.so.1 is missing: install it with `apt-get install libgomp1` "
                "(Debian, Ubuntu) or `dnf install libgomp` (Fedora)"
            )
    try:
        engine = _engine()
    except ModuleNotFoundError:
        return (
            "xllamacpp is not installed: install the node's extra `llama` (scripts/install llama)"
        )
    except ImportError as error:
        return f"xllamacpp cannot be loaded: {error}"
    engine.get_system_info()
    return None


def _engine() -> Any:
    return importlib.import_module("xllamacpp")


def _missing_flags() -> list[str]:
    if platform.machine() not in ("x86_64", "AMD64"):
        return []
    flags = _cpuinfo("flags").split()
    return [flag for flag in NEEDED_FLAGS if flags and flag not in flags]


def _cpuinfo(field: str) -> str:
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open() as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == field:
                return value.strip()
    return ""


def cpu_name() -> str:
    """The CPU's type: answers are the same on one type only."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def parameters(options: argparse.Namespace, address: str) -> Any:
    """llama.cpp's settings; those of `settings` below make answers reproducible."""
    llama = _engine()
    params = llama.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias}
    params.hostnames = [address]
    params.port = 0
    params.cors_origins = ""
    params.ui = False
    params.endpoint_slots = False
    params.endpoint_metrics = True
    params.verbosity = _TALKATIVE if options.verbose else _QUIET
    # each open connection holds one of these threads, idle ones too
    params.n_threads_http = max(64, 8 * options.slots)

    params.n_parallel = options.slots
    params.n_ctx = options.slots * options.context
    params.n_batch = params.n_ubatch = BATCH
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.flash_attn_type = llama.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.cache_type_k = params.cache_type_v = llama.ggml_type.GGML_TYPE_BF16
    params.kv_unified = False
    params.no_extra_bufts = True
    params.ctx_shift = False
    params.n_cache_reuse = 0
    params.n_ctx_checkpoints = 0
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    params.fit_params = False
    params.n_gpu_layers = 0
    # a last message of the assistant's is history, as with OpenAI, not the answer's beginning
    params.prefill_assistant = False

    if options.template:
        params.chat_template = Path(options.template).read_text()
    if options.temperature is not None:
        params.sampling.temp = options.temperature
    return params


def settings(params: Any) -> dict[str, Any]:
    """Those settings on which the bytes of an answer depend."""
    return {
        "slots": params.n_parallel,
        "context": params.n_ctx // params.n_parallel,
        "threads": params.cpuparams.n_threads,
        "batch": params.n_batch,
        "flash_attention": params.flash_attn_type.name.rpartition("_")[2].lower(),
        "kv_type": params.cache_type_k.name.rpartition("_")[2].lower(),
        "kv_unified": params.kv_unified,
        "weight_repacking": not params.no_extra_bufts,
        "prompt_cache": params.cache_prompt,
        "temperature": round(params.sampling.temp, 6),
    }


def serve(options: argparse.Namespace) -> NoReturn:
    """Load the model, say that it is ready, and serve until a signal ends the process."""
    # TERM keeps its default action: a handler would wait for the load or a running request
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    trouble = check()
    if trouble:
        _give_up(trouble)
    engine = _engine()
    address = Path(os.environ["HYPERBEAM_RUN_FOLDER"]) / "llama.sock"
    # one that was killed leaves its socket behind
    address.unlink(missing_ok=True)
    params = parameters(options, str(address))
    try:
        server = engine.Server(params)
    except RuntimeError as error:
        _give_up(f"llama.cpp cannot serve {options.model}: {error}")
    ready = {
        "ready": True,
        "address": server.listening_address,
        "pid": os.getpid(),
        "engine": f"xllamacpp {engine.__version__}",
        "cpu": cpu_name(),
        "settings": settings(params),
    }
    os.write(1, json.dumps(ready).encode() + b"\n")
    while True:
        signal.pause()


def _give_up(reason: str) -> NoReturn:
    sys.stderr.write(reason + "\n")
    sys.stderr.flush()
    os._exit(USELESS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="llama_server", description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--model", default="")
    parser.add_argument("--alias", default="model")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--context", type=int, default=2048, help="tokens a slot")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--template", default="")
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if not options.check:
        serve(options)
    trouble = check()
    if trouble:
        _give_up(trouble)


if __name__ == "__main__":
    main()
