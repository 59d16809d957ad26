"""Interrupts at each place of a function where the interpreter lets one come: after a call, a jump back, its begin."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

HEEDED = ("CALL", "RESUME", "JUMP_BACKWARD")  # the instructions after which signals are looked at


def interrupted_at(number: int, function: Callable[..., object], act: Callable[[], object]) -> bool:
    """Call *act*, with an interrupt at the place of this *number* within *function*; false if it has fewer."""
    code, place = function.__code__, 0  # type: ignore[attr-defined]
    names = {each.offset: each.opname for each in dis.get_instructions(code)}
    before = ""

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal before, place
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            heeds, before = before.startswith(HEEDED), names.get(frame.f_lasti, "")
            if heeds:
                place += 1
                if place > number:
                    raise KeyboardInterrupt
        elif event == "exception":
            before = ""  # after a call that fails, they are not
        return trace

    traced = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks at it only when tracing begins
    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(traced)
    return False
