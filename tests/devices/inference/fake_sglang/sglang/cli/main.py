"""`sglang serve`. `--behave` makes it fail in the ways of the real one."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

FAILURES = {
    "memory": "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    "port": "ERROR: [Errno 98] error while attempting to bind on address: address already in use",
    "broken": "ValueError: Unsupported architectures: ['Nonsense']",
}


def main() -> None:
    assert sys.argv[:2] == ["sglang", "serve"]
    parser = argparse.ArgumentParser()
    for flag in ("--model-path", "--served-model-name", "--host", "--random-seed"):
        parser.add_argument(flag)
    for flag in ("--log-level-http", "--behave", "--tp-size", "--lora-paths"):
        parser.add_argument(flag, default="")
    parser.add_argument("--port", type=int)
    parser.add_argument("--api-key")
    parser.add_argument("--enable-deterministic-inference", action="store_true")
    parser.add_argument("--enable-metrics", action="store_true")
    args = parser.parse_args(sys.argv[2:])
    say(f"server_args=ServerArgs(api_key='{args.api_key}')")
    if args.behave in FAILURES:
        say(FAILURES[args.behave])
        say("RuntimeError: Rank 0 scheduler died during initialization")
        sys.exit(1)
    say("Loading safetensors checkpoint shards:  50% Completed | 1/2")
    serve(args)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def serve(args: argparse.Namespace) -> None:
    scheduler = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    tempfile.NamedTemporaryFile(delete=False)  # noqa: SIM115
    shared = shared_memory.SharedMemory(create=True, size=64)
    server = Server(args)

    def drain(*_: Any) -> None:
        scheduler.kill()
        threading.Thread(target=server.shutdown, daemon=True).start()

    signal.signal(signal.SIGTERM, drain)
    about = {
        "pids": [os.getpid(), scheduler.pid],
        "shm": shared.name,
        "tmp": tempfile.gettempdir(),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "command": Path(f"/proc/{os.getpid()}/cmdline").read_text(),
        "extra": os.environ.get("EXTRA"),
    }
    say("about " + json.dumps(about))
    server.serve_forever(poll_interval=0.02)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__((args.host, args.port), Handler)
        self.args = args
        self.ready = args.behave != "unready"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        args = self.server.args
        if self.path == "/ready":
            self.reply(200 if self.server.ready else 503)
        elif self.headers.get("authorization") != f"Bearer {args.api_key}":
            self.reply(401, {"error": "Unauthorized"})
        elif self.path == "/server_info":
            strange = args.behave == "stranger"
            self.reply(200, {
                "version": "0.5.23",
                "model_path": args.model_path,
                "served_model_name": "of somebody else" if strange else args.served_model_name,
                "port": args.port,
                "enable_deterministic_inference": args.enable_deterministic_inference,
                "random_seed": int(args.random_seed),
                "tp_size": int(args.tp_size or 1),
                "lora_paths": args.lora_paths or None,
                "mem_fraction_static": 0.7,
                "device": "cuda",
            })  # fmt: skip
        elif self.path == "/v1/models":
            model = {"id": args.served_model_name, "max_model_len": 4096}
            self.reply(200, {"object": "list", "data": [model]})
        elif self.path == "/v1/loads":
            self.reply(200, {"accelerator": "NVIDIA H200", "loads": []})
        else:
            self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.reply(200, {"asked": body})

    def reply(self, status: int, value: Any = None) -> None:
        data = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None: ...
