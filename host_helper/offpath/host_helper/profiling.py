"""Measures a kernel's throughput on one instance: the calls that a worker makes, without a daemon and its messages.

The kernel runs in a forked process, because the caller forks and must therefore never use a GPU's driver itself. What
it leaves in the instance is scrubbed before this returns.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from offpath.bindings import forked
from offpath.bindings.errors import DeviceError, OffpathError, OptionRefused, PlacementTaken
from offpath.bindings.mig import MigProfile
from offpath.bindings.ports import Gpu
from offpath.bindings.wire import host
from offpath.bindings.wire.header import MAX_TENSORS, STRINGS, Tensor, pack_tensors
from offpath.host_helper.arguments import Arguments, call_on_stream
from offpath.host_helper.dtypes import wire_code
from offpath.host_helper.kernels import (
    NOTHING_ASKED,
    Asked,
    Kernel,
    KernelTable,
    LaneContext,
    LaneMemory,
    call_kernel,
    enter_lane,
)
from offpath.host_helper.raised import summary
from offpath.host_helper.results import store
from offpath.host_helper.scrubbing import scrub
from offpath.host_helper.slots import flat_bytes
from offpath.host_helper.streaming import END, Values
from offpath.host_helper.strings import KINDS, Strings, serialised

WARM_UP: Final = 3
"""Runs before the measurement: libraries choose algorithms and allocate at their first calls."""
BLOCKS: Final = 5
"""Parts of a measurement, of which the median counts: other load on the machine disturbs some."""
_MOST_RUNS: Final = 10_000_000
MOST_VALUES: Final = 64
"""Values that a run takes of a kernel that streams."""
_LIMIT_S: Final = 300.0
"""Added to the measurement's time: a model may take minutes to load."""
_ALIGN: Final = 64
Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Sample:
    """A request's payload, as in a slot, and the room for its result. Sizes in bytes."""

    payload: bytes
    tensors: bytes
    result_bytes: int


def sample_of(arrays: Sequence[NDArray[Any]], result_bytes: int) -> Sample:
    """Raises: OptionRefused: none or too many arrays, or a dtype that requests cannot have."""
    if not 1 <= len(arrays) <= MAX_TENSORS:
        raise OptionRefused(f"{len(arrays)} inputs; a request has 1 to {MAX_TENSORS}")
    payload, tensors = bytearray(), []
    for array in arrays:
        payload += bytes(-len(payload) % _ALIGN)
        if array.dtype.kind in KINDS:
            strings = _strings_of(array)
            tensors.append(Tensor(STRINGS, array.shape, len(payload), strings.nbytes))
            payload += b"".join(strings.pieces)
            continue
        code = wire_code(array.dtype)
        if code is None:
            raise OptionRefused(f"requests cannot carry the dtype {array.dtype}")
        tensors.append(Tensor(code, array.shape, len(payload), array.nbytes))
        payload += flat_bytes(np.ascontiguousarray(array))
    return Sample(bytes(payload), pack_tensors(tensors), result_bytes)


def _strings_of(array: NDArray[Any]) -> Strings:
    try:
        return serialised(array)
    except (TypeError, ValueError) as fault:
        raise OptionRefused(str(fault)) from None


def measure(
    table: KernelTable,
    kernel: Kernel,
    gpu: Gpu,
    profile: MigProfile,
    sample: Sample,
    seconds: float,
    clock: Clock = time.monotonic_ns,
) -> float:
    """Runs per second of the kernel alone on a new instance of the profile, one run at a time. Blocks for ``seconds``
    and what the kernel's model takes to load.

    Raises: DeviceError: no place for the instance, or the kernel raised, or the device failed.
    """
    instance = _create(gpu, profile)
    try:
        what = f"kernel {kernel.name} on {profile.name}"
        text = forked.call(
            lambda: _runs(table, kernel, gpu, profile, instance, sample, seconds, clock), what, seconds + _LIMIT_S
        )
        return float(text)
    finally:
        scrub(gpu, instance)
        gpu.destroy_instance(instance)


def _create(gpu: Gpu, profile: MigProfile) -> int:
    """Raises: DeviceError: no start is free."""
    reason = ""
    for start in profile.starts:
        try:
            return gpu.create_instance(profile.name, start)
        except PlacementTaken as fault:
            reason = str(fault)
    raise DeviceError(f"{gpu.uuid} has no room for {profile.name} now ({reason}); no lease may be on the GPU")


def _runs(
    table: KernelTable, kernel: Kernel, gpu: Gpu, profile: MigProfile, instance: int, sample: Sample, seconds: float,
    clock: Clock,
) -> str:  # fmt: skip
    memory = gpu.open_instance(instance)
    lane = memory.reserve(0, 1, max(1, len(sample.payload)), sample.result_bytes)
    context = LaneContext(
        "profile", gpu.uuid, profile.name, profile.starts[0], 0, 0, 0, os.getpid(), LaneMemory(lane)
    )  # fmt: skip
    enter_lane(context)
    lane.write(0, sample.payload)
    lane.acquire(len(sample.payload))
    arguments = Arguments(lane)
    launch = host.Launch(0, 0, 1, kernel.demand, 0, 0, len(sample.payload), sample.tensors)

    def run() -> None:
        given = arguments.of(kernel, launch)
        asked = {"parameters": arguments.parameters(kernel, launch)} if kernel.parameters else NOTHING_ASKED
        for result in _results(kernel, given, lane.stream, asked):
            lane.synchronize()
            if store(lane, result).status != host.RESULT_OK:
                raise OptionRefused(f"the result does not fit {sample.result_bytes} bytes: use a larger --result-bytes")

    try:
        for opened in table.on_lane_open:
            opened(context)
        for _ in range(WARM_UP):
            run()
        return repr(statistics.median([_rate(run, seconds / BLOCKS, clock) for _ in range(BLOCKS)]))
    except OffpathError:
        raise
    except Exception as fault:  # boundary to user code
        raise OptionRefused(f"kernel {kernel.name} raised {summary(fault)}") from fault


def _results(kernel: Kernel, given: Sequence[Any], stream: int, asked: Asked) -> Iterator[Any]:
    """The result, or the values of a kernel that streams, which may have no end."""
    if kernel.streams:
        values = Values(kernel, given, stream, asked)
        for _ in range(MOST_VALUES):
            if (value := values.next()) is END:
                return
            yield value
        values.close()
    else:
        yield call_on_stream(kernel, given, stream, asked) if stream else call_kernel(kernel, given, asked)


def _rate(run: Callable[[], None], seconds: float, clock: Clock) -> float:
    """Runs per second; one run at least."""
    began, done = clock(), 0
    while done < _MOST_RUNS and (not done or clock() - began < seconds * 1e9):
        run()
        done += 1
    return done / max(1, clock() - began) * 1e9
