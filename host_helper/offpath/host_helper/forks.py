"""What a fork takes from user code, and what it must not: workers are forked from the process that loaded the file.

A worker has no threads but its own, so pools of threads begin anew, and pools of processes say that they are gone. It
has random numbers of its own. A child that a kernel forks has nothing to answer.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from typing import Any, Final

from offpath.host_helper.errors import LoadEnded
from offpath.host_helper.kernels import KernelTable
from offpath.host_helper.raised import summary

_ENTROPY_BITS: Final = 64
"""A seed that was drawn has more; one that somebody chose has fewer."""
_KINDS: Final = (
    ("concurrent.futures.thread", "ThreadPoolExecutor"), ("concurrent.futures.process", "ProcessPoolExecutor"),
    ("multiprocessing.pool", "Pool"),
)  # fmt: skip
_GONE: Final = "its processes are of the process that this worker was forked from: make it under @helper.lane_opened"


def end_if_forked(owner: int, fault: BaseException | None = None) -> None:
    """In a process other than ``owner``, which user code has forked and in which it has returned: end it, as a process
    that a program forked would end. ``fault``: what was raised."""
    if os.getpid() == owner:
        return
    code = 0
    if isinstance(fault, SystemExit):
        code = fault.code if isinstance(fault.code, int) else int(fault.code is not None)
    elif fault is not None:
        code = 1
        traceback.print_exception(fault)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def python_threads() -> list[str]:
    """The names of the threads of Python but the caller's: no worker will have them."""
    return sorted(each.name for each in threading.enumerate() if each is not threading.current_thread())


def pools() -> list[Any]:
    """The pools with threads that user code has made so far; before a fork."""
    if not python_threads():
        return []
    known = tuple(getattr(sys.modules[module], name) for module, name in _KINDS if module in sys.modules)
    return [each for each in gc.get_objects() if isinstance(each, known)]


@contextlib.contextmanager
def no_child(owner: int, name: str) -> Iterator[None]:
    """Around a function of the file, ``name``, that loads. Raises: LoadEnded: it asked the process to end."""
    try:
        yield
        end_if_forked(owner)
    except (SystemExit, KeyboardInterrupt) as fault:
        end_if_forked(owner, fault)
        raise LoadEnded(f"{name}, called when the lane was opened, ended with {summary(fault)}") from None
    except Exception as fault:
        end_if_forked(owner, fault)
        raise


def renew(pools: Iterable[Any], table: KernelTable) -> None:
    """In a worker, before user code runs there: what it has from the process that it was forked from begins anew.
    ``pools``: what `pools` found. ``table``: has the file's functions, whose globals are looked through."""
    for pool in pools:
        _renew_pool(pool)
    functions = (*(each.function for each in table.kernels.values()), *table.on_lane_open)
    names = [getattr(each, "__globals__", {}) for each in functions]
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()
        for generator in {id(each): each for names_ in names for each in names_.values()}.values():
            if isinstance(generator, random.Generator):
                _renew_generator(generator)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.seed()


def _renew_pool(pool: Any) -> None:
    """The standard library has no way to do this, so it is done to the attributes that its pools have."""
    if hasattr(pool, "_idle_semaphore") and hasattr(pool, "_work_queue"):  # ThreadPoolExecutor
        pool._threads = set()
        pool._idle_semaphore = threading.Semaphore(0)
        pool._work_queue = queue.SimpleQueue()
        pool._shutdown_lock = threading.Lock()
    elif hasattr(pool, "_broken"):  # ProcessPoolExecutor, whose `submit` says what is broken
        pool._broken = _GONE
        pool._shutdown_lock = threading.Lock()
    else:  # multiprocessing.Pool, which then refuses work
        pool._state = "CLOSE"


def _renew_generator(generator: Any) -> None:
    """Unless its maker chose a seed."""
    bits = generator.bit_generator
    entropy = getattr(getattr(bits, "seed_seq", None), "entropy", None)
    if isinstance(entropy, int) and entropy.bit_length() > _ENTROPY_BITS:
        bits.state = type(bits)().state
