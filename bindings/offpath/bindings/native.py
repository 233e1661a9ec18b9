"""Selects the request path's mechanics at import: the C module `offpath.bindings._path`, or its twins in Python.

The C module runs if it is there, was built from these sources for these formats, and ``OFFPATH_PURE`` is not 1.
`offpath.bindings.build` reports which runs. A caller takes the functions from here and does not see a difference, but
for ``end_of``: the C functions take a socket's descriptor.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from offpath.bindings import twins
from offpath.bindings.sources import checksum
from offpath.bindings.wire.header import AnswerHeader, RequestHeader
from offpath.bindings.wire.host import Launch, Result

SOURCES: Final = Path(__file__).parents[2] / "csrc" / "path"
"""Present in a checkout, absent beside an installed wheel."""


def load(name: str = "offpath.bindings._path") -> tuple[Any, str, bool]:
    """(the configured C module or None, why there is none, whether it is stale)."""
    if os.environ.get("OFFPATH_PURE") == "1":
        return None, "OFFPATH_PURE=1", False
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError:
        return None, "the C module is not built", False
    except ImportError as fault:
        return None, f"the C module cannot be loaded: {fault}", True
    if found.LAYOUT != twins.LAYOUT:
        return None, "the C module is stale: it was built for other formats", True
    if SOURCES.is_dir() and checksum(SOURCES) != found.SOURCES:
        return None, "the C module is stale: its sources have changed", True
    found.configure(twins)
    return found, "", False


def module_for(name: str, layout: str) -> Any:
    """The C module if it runs and was written for this ``layout``, which it has as its constant ``name``; or None."""
    return module if module is not None and getattr(module, name) == layout else None


module, why, is_stale = load()
"""The C module, or None; why it does not run; whether it is there and cannot be used."""
_chosen: Any = twins if module is None else module

take_request: Callable[[memoryview, int, int], tuple[RequestHeader, int]] = _chosen.take_request
pack_request: Callable[..., bytes] = _chosen.pack_request
pack_answer: Callable[..., bytes] = _chosen.pack_answer
parse_answer: Callable[[bytes, int], AnswerHeader] = _chosen.parse_answer
parse_launch: Callable[[bytes], Launch] = _chosen.parse_launch
parse_result: Callable[[bytes], Result] = _chosen.parse_result
ring: Callable[[Any, int], bool] = _chosen.ring
receive: Callable[[Any], int | None] = _chosen.receive
receive_message: Callable[[Any], bytes | None] = _chosen.receive_message
wait: Callable[[int, int, float | None], bool] = _chosen.wait
spin: Callable[[int, int], bool] = _chosen.spin
copy: Callable[[memoryview, int, memoryview, int, int], bool] = _chosen.copy
end_of: Callable[[socket.socket], Any] = twins.end_of if module is None else socket.socket.fileno
