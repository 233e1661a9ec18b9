"""Compression of one request beside the loop that serves all: zlib does not hold Python's lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

_MOST_AT_ONCE: Final = 64 * 1024
_T = TypeVar("_T")


async def aside(nbytes: int, function: Callable[..., _T], *arguments: Any) -> _T:
    """The function's result; for many bytes in a thread, which goes on if the caller is cancelled: the function must
    own or borrow nothing."""
    if nbytes <= _MOST_AT_ONCE:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)
