"""What of SGLang's output tells an operator how it goes, and why it went wrong."""

from __future__ import annotations

import re

_LIMIT = 500
_PROGRESS = re.compile(r"\b(Load\w*|Captur\w*)\b[^:|%]{0,80}: +(\d{1,3})%")
_ERROR = re.compile(r"(?:^|[\s:])((?:[A-Za-z_]\w*\.)*[A-Za-z_]*(?:Error|Exception): \S.*)")
_USAGE = re.compile(r"\berror: (.+)")
_KNOWN = (
    (
        re.compile(r"out of memory|not enough memory|OutOfMemoryError", re.IGNORECASE),
        "there is too little memory: lower --mem-fraction-static, --context-length or "
        "--max-running-requests in [inference] args, or give it more GPUs (gpus, --tp-size)",
    ),
    (
        re.compile(r"address already in use|port \d+ is (?:already )?in use", re.IGNORECASE),
        "another program took its port while it loaded",
    ),
    (
        re.compile(r"is not a local folder and is not a valid model|RepositoryNotFound"),
        "the model is not in the hub, or it wants a token (HF_TOKEN)",
    ),
)
_CONSEQUENCES = ("scheduler died", "Initialization failed", "SystemExit")


class Listener:
    """Hears one start of the server. `complaint` and `progress` are "" where it said nothing."""

    def __init__(self) -> None:
        self.complaint = ""
        self.progress = ""
        self._certain = False

    def reset(self) -> None:
        """It starts anew; what it complained of last is kept until it says something else."""
        self.progress = ""
        self._certain = False

    def hear(self, line: str) -> None:
        found = _PROGRESS.search(line)
        if found:
            self.progress = f"{found[1].lower()} {found[2]} %"
            return
        if self._certain:
            return
        for pattern, words in _KNOWN:
            found = pattern.search(line)
            if found:
                self._certain = True
                self.complaint = f"{words} ({line.strip()[:_LIMIT]})"
                return
        found = _ERROR.search(line) or _USAGE.search(line)
        if found and not any(words in line for words in _CONSEQUENCES):
            self.complaint = found[1][:_LIMIT]
