"""Reports a kernel's exception: a line for the answer, and its traceback in the helper's log.

The exception is the kernel's, and its text may be the requester's. Both are bounded; neither can move a terminal's
cursor or forge a log line. An exception that cannot be formatted is reported all the same.
"""

from __future__ import annotations

import logging
import traceback
from types import TracebackType
from typing import Final

from offpath.host_helper import kernels, streaming

logger = logging.getLogger(__name__)
MOST_CHARACTERS: Final = 8192
"""Longest traceback in the log; the middle of a longer one is left out."""
BURST: Final = 20
PER_S: Final = 2.0
"""Rate limit of one worker's tracebacks: `BURST` at once, then `PER_S` a second."""
_FRAMES: Final = 50
_MARGIN: Final = "  | "


def summary(fault: BaseException) -> str:
    """``KIND: TEXT``, also for an exception that cannot be formatted."""
    kind = type(fault).__name__
    try:
        return f"{kind}: {fault}"
    except Exception as second:  # `__str__` is user code too
        return f"{kind}: its text cannot be formatted ({type(second).__name__})"


def story(fault: BaseException, ours: frozenset[str]) -> str:
    """The traceback from the first frame outside of the files ``ours``, each line behind a margin; at most
    `MOST_CHARACTERS` before the margins.
    """
    try:
        lines = traceback.format_exception(type(fault), fault, _theirs(fault.__traceback__, ours), limit=-_FRAMES)
        text = "".join(lines)
    except Exception:
        text = summary(fault)
    if len(text) > MOST_CHARACTERS:
        half = MOST_CHARACTERS // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
    return "\n".join(_MARGIN + printable(line) for line in text.rstrip("\n").split("\n"))


def printable(line: str) -> str:
    """``line`` with spaces for characters that a terminal interprets or that cannot be written."""
    return "".join(each if each.isprintable() else " " for each in line)


def _theirs(trace: TracebackType | None, ours: frozenset[str]) -> TracebackType | None:
    """The part after the frames of ``ours`` that called the kernel; all of it if nothing follows them."""
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename in ours:
        first = first.tb_next
    return first if first is not None else trace


class Raised:
    """The log of one worker's exceptions: `BURST` at once, then `PER_S` a second, with the number of those left out.

    ``where`` names the worker; ``caller`` is the file that calls kernels.
    """

    def __init__(self, where: str, caller: str) -> None:
        self._where = where
        self._ours = frozenset({caller, kernels.__file__, streaming.__file__})
        self._left = float(BURST)
        self._last_ns = 0
        self._left_out = 0

    def note(self, fault: BaseException, kernel: str, job: int, *, now_ns: int) -> None:
        """``job`` ended with ``fault``; ``now_ns`` is monotonic."""
        self._left = min(float(BURST), self._left + (now_ns - self._last_ns) / 1e9 * PER_S)
        self._last_ns = now_ns
        if self._left < 1:
            self._left_out += 1
            return
        self._left -= 1
        more = f" ({self._left_out} earlier ones left out)" if self._left_out else ""
        self._left_out = 0
        logger.warning(
            "%s: kernel %s raised in job %d%s:\n%s", self._where, kernel, job, more, story(fault, self._ours)
        )
