"""How much work a call is, counted: nothing that depends on how busy a machine is."""

import sys
from collections.abc import Callable
from typing import Any


def work(call: Callable[[], object]) -> int:
    """Lines run, calls made and calls of what is written in C while `call` runs."""
    count = 0

    def line(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return line

    def native(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "c_call"

    before = sys.gettrace(), sys.getprofile()
    sys.setprofile(native)
    sys.settrace(line)
    try:
        call()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    return count
