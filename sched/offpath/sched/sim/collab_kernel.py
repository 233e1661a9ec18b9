"""The inner loops of `CollabSimulation` and `FastSimulation`, plain or compiled.

The functions are in four modules and call one another. numba finds a function in its cache again if what it calls is
global, not if it is a closure's; and its cache follows changes of the function's own file only. So all are made anew
here with common globals, and with names that change when one of them or a column does.
"""

from __future__ import annotations

import marshal
import zlib
from collections.abc import Callable
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, Final

from offpath.sched.sim import collab_check_ins, collab_columns, collab_orders, collab_rounds, collab_tiers

_MODULES: Final = (collab_check_ins, collab_tiers, collab_orders, collab_rounds)
_ENTRIES: Final = ("serve", "tally", "by_speed", "forward")
_VERSION: Final = 2
"""Of marshal: the last one without references, so that equal code has equal bytes."""


def build(jit: Callable[[Any], Any]) -> dict[str, Any]:
    """The functions by name, each processed by ``jit``."""
    functions = [each for module in _MODULES for each in _functions_of(module)]
    common: dict[str, Any] = {}
    for module in _MODULES:
        common.update(vars(module))
    common["__name__"] = __name__
    stamp = _stamp(functions)
    for function in functions:
        linked = FunctionType(function.__code__, common, function.__name__)
        linked.__qualname__ = f"{function.__name__}_{stamp:08x}"
        common[function.__name__] = jit(linked)
    return {name: common[name] for name in _ENTRIES}


def _functions_of(module: ModuleType) -> list[FunctionType]:
    found = [each for each in vars(module).values() if isinstance(each, FunctionType)]
    return [each for each in found if each.__module__ == module.__name__]


def _stamp(functions: list[FunctionType]) -> int:
    columns = sorted((name, value) for name, value in vars(collab_columns).items() if name.isupper())
    return zlib.crc32(repr(columns).encode() + b"".join(marshal.dumps(each.__code__, _VERSION) for each in functions))


@cache
def kernels(compiled: bool) -> dict[str, Any]:
    """The functions of `build`, compiled or plain."""
    if not compiled:
        return build(lambda function: function)
    import numba

    try:
        return build(numba.njit(cache=True))  # cached beside the source or in the user's cache
    except RuntimeError:  # neither is writable
        return build(numba.njit)
