"""SGLang's process: `sglang serve` with the arguments that the node left in its run folder.

The file `launch.json` there holds the list of arguments; it is removed once it is read, as the
key for the server's API is among them, which a command line would show to every user of the
machine. Exit status 78 means that starting again is useless; the last line of standard error
says why. Uses the standard library only: it runs by path, in the interpreter that has SGLang.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

USELESS = os.EX_CONFIG
WRONG_USAGE = 2
LAUNCH = "launch.json"
TEMPORARY = "tmp"
_PR_SET_PDEATHSIG = 1


def serve() -> None:
    """Run the server to its end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # without its bytecode SGLang takes a minute longer, and its children inherit the wish
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.execv(sys.executable, [sys.executable, __file__])
    _leave_own_folder()
    folder = Path(os.environ["HYPERBEAM_RUN_FOLDER"])
    launch = folder / LAUNCH
    arguments = json.loads(launch.read_text(encoding="utf-8"))
    launch.unlink()
    temporary = folder / TEMPORARY
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = str(temporary)
    # programs that SGLang calls, such as ninja, lie beside its interpreter
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    if importlib.util.find_spec("sglang") is None:
        _give_up(
            f"sglang is not installed for {sys.executable}: `pip install 'hyperbeam-node[sglang]'` "
            "in the node's environment, or [inference] python = the interpreter that has it"
        )
    sys.argv = ["sglang", "serve", *arguments]
    try:
        importlib.import_module("sglang.cli.main").main()
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] == "sglang":
            _give_up(f"the sglang that {sys.executable} has is too old: 0.5.23 or later is needed")
        raise
    except SystemExit as end:
        if end.code == WRONG_USAGE:
            with contextlib.suppress(OSError):
                sys.stderr.flush()
            os._exit(USELESS)
        raise


def _leave_own_folder() -> None:
    """Beside this file lies another `sglang`, the node's own."""
    here = Path(__file__).parent.resolve()
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != here]


def _give_up(reason: str) -> NoReturn:
    sys.stderr.write(reason + "\n")
    sys.stderr.flush()
    os._exit(USELESS)


if __name__ == "__main__":
    serve()
