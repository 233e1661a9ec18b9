"""`python -m …profiled_daemon WORDS…` is `offpath WORDS…` with the functions of `STAGES` wrapped.

The sums are in a file that the benchmark maps too, so a block costs the daemon no message.
"""

from __future__ import annotations

import functools
import importlib
import mmap
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from offpath.bindings.errors import OffpathError
from offpath.cli.bench.request_path.stages import STAGES
from offpath.cli.local.child import end_with_parent

FILE: Final = "OFFPATH_BENCH_PROFILE"
"""Environment variable: path of the file of `Sums`."""
_COST_FIELDS: Final = 2
_FIELDS: Final = 3
_WORD: Final = 8
_CALIBRATION: Final = 20_000
_PS: Final = 1000


class StageSum(NamedTuple):
    """Of one stage: own time in ns, its calls, and the wrapped calls that these made directly."""

    own_ns: int
    calls: int
    inner_calls: int


class Cost(NamedTuple):
    """What wrapping adds to a call, ns: within the time that the wrapper takes, and around it."""

    inside_ns: float
    around_ns: float


class Sums:
    """The file's layout: the cost in ps, then three words for each stage."""

    def __init__(self, path: str, *, is_new: bool) -> None:
        nbytes = (_COST_FIELDS + _FIELDS * len(STAGES)) * _WORD
        with open(path, "w+b" if is_new else "r+b") as file:
            if is_new:
                file.truncate(nbytes)
            self.words = memoryview(mmap.mmap(file.fileno(), nbytes)).cast("q")

    def at(self, stage: int) -> int:
        """The first word of the stage."""
        return _COST_FIELDS + _FIELDS * stage

    def read(self) -> dict[str, StageSum]:
        """The sums since the daemon's start."""
        return {
            name: StageSum(*self.words[self.at(number) : self.at(number) + _FIELDS])
            for number, name in enumerate(STAGES)
        }

    @property
    def cost(self) -> Cost:
        """As `calibrate` measured it."""
        return Cost(self.words[0] / _PS, self.words[1] / _PS)


class Tracer:
    """Wraps functions so that each adds its own time to its stage."""

    def __init__(self, sums: Sums) -> None:
        self._sums = sums
        self._inner = [0, 0]
        """Time and number of the wrapped calls so far within the one under way."""

    def wrapped(self, function: Callable[..., Any], stage: int) -> Callable[..., Any]:
        """``function``, traced."""
        clock, inner, words, at = time.perf_counter_ns, self._inner, self._sums.words, self._sums.at(stage)

        @functools.wraps(function)
        def traced(*args: Any, **named: Any) -> Any:
            outer_ns, outer_calls = inner
            inner[0] = inner[1] = 0
            begun_ns = clock()
            try:
                return function(*args, **named)
            finally:
                took_ns = clock() - begun_ns
                words[at] += took_ns - inner[0]
                words[at + 1] += 1
                words[at + 2] += inner[1]
                inner[0], inner[1] = outer_ns + took_ns, outer_calls + 1

        return traced

    def calibrate(self) -> None:
        """Measure what wrapping costs, by an empty function, and store it."""

        def empty() -> None:
            return None

        words, at = self._sums.words, self._sums.at(0)
        bare_ns = _run_ns(empty)
        words[at : at + _FIELDS] = memoryview(bytes(_FIELDS * _WORD)).cast("q")
        around_ns = _run_ns(self.wrapped(empty, 0)) - bare_ns
        inside_ns = words[at] / _CALIBRATION
        words[at : at + _FIELDS] = memoryview(bytes(_FIELDS * _WORD)).cast("q")
        words[0], words[1] = int(inside_ns * _PS), int((around_ns - inside_ns) * _PS)


def _run_ns(function: Callable[[], None]) -> float:
    begun_ns = time.perf_counter_ns()
    for _ in range(_CALIBRATION):
        function()
    return (time.perf_counter_ns() - begun_ns) / _CALIBRATION


def located(name: str) -> tuple[Any, str]:
    """The owner and the attribute of a dotted name. Raises: OffpathError: there is no such function."""
    words = name.split(".")
    for split in range(len(words) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(words[:split]))
        except ModuleNotFoundError:
            continue
        try:
            for word in words[split:-1]:
                owner = getattr(owner, word)
            if callable(getattr(owner, words[-1])):
                return owner, words[-1]
        except AttributeError:
            break
        break
    raise OffpathError(f"--profile: there is no function {name}; correct STAGES in bench/request_path/stages.py")


def install(sums: Sums) -> None:
    """Wrap every function of `STAGES`. Raises: OffpathError: one does not exist, or belongs to a compiled class."""
    tracer = Tracer(sums)
    tracer.calibrate()
    for number, names in enumerate(STAGES.values()):
        for name in names:
            owner, attribute = located(name)
            try:
                setattr(owner, attribute, tracer.wrapped(getattr(owner, attribute), number))
            except TypeError:
                raise OffpathError(f"--profile: {name} is compiled; profile the pure build (OFFPATH_PURE=1)") from None


def main() -> int:
    """Wrap, then run the command line."""
    end_with_parent()
    from offpath.cli.main import main as command_line

    try:
        install(Sums(os.environ[FILE], is_new=False))
    except OffpathError as fault:
        print(f"offpath: {fault}", file=sys.stderr)
        return 1
    return command_line()


if __name__ == "__main__":
    sys.exit(main())
