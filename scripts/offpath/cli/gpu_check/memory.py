"""Checks 7 and 8: scrubs with their speed, and what a killed process leaves to the next one."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from functools import partial
from typing import Final

from offpath.bindings.cuda.driver import OUT_OF_MEMORY
from offpath.bindings.cuda.instance import scrub
from offpath.bindings.cuda.kernels import WORD_BYTES, ZeroCheck
from offpath.bindings.errors import CudaError, DeviceError
from offpath.cli.bench.gpu.device import Device
from offpath.cli.bench.gpu.setting import Setting, in_child
from offpath.cli.bench.measure import end, fork
from offpath.cli.gpu_check.figures import Figures

_MIB: Final = 1 << 20
_SIZES: Final = (1, 16, 256, 4096, 32_768)
"""MiB, those that fit."""
_PATTERN: Final = 0xA5
_LARGEST_PIECE: Final = 2 << 30
_SMALLEST_PIECE: Final = 2 << 20
_KEPT: Final = 1 << 30
_QUICK_BYTES: Final = 16 << 20
_READY_S: Final = 40.0
_REPEATS: Final = 3


# -- check 7 ----------------------------------------------------------------------------------------------------------
def scrubs(setting: Setting, figures: Figures) -> None:
    """Bandwidth of memset and of the check for zero, and a scrub of all memory."""
    figures.attempt("bandwidth", lambda: _bandwidth(setting, figures))
    verified = figures.attempt("scrub of all memory", lambda: _timed_scrub(setting, figures))
    if verified:
        figures.add("verified as zero", verified, "bytes")
        figures.add("of the device's memory", verified / setting.nbytes, "")
        figures.expect("a scrub reaches nine tenths of the memory", verified >= 0.9 * setting.nbytes)
    figures.attempt("dirty memory is found", lambda: _finds_dirt(setting, figures))


def _bandwidth(setting: Setting, figures: Figures) -> None:
    device = Device(setting)
    check = ZeroCheck(device.context, device.stream)
    free, _ = device.context.memory()
    for mib in _SIZES:
        nbytes = mib * _MIB
        if nbytes * 2 > free or (setting.is_emulated and mib > 1):
            break
        pointer = device.allocate(nbytes)
        memset = partial(device.call, "cuMemsetD8Async", pointer, 0, nbytes, device.stream)
        clear = min(device.timed(memset) for _ in range(_REPEATS))
        looked = min(device.timed(partial(check.is_zero, pointer, nbytes)) for _ in range(_REPEATS))
        figures.add(f"memset of {mib} MiB", nbytes / clear / 1e9, "GB/s")
        figures.add(f"check of {mib} MiB", nbytes / looked / 1e9, "GB/s")
        device.call("cuMemFree", pointer)


def _timed_scrub(setting: Setting, figures: Figures) -> int:
    began = time.perf_counter()
    verified = scrub(setting.uuid)
    figures.add("scrub of all memory, context included", time.perf_counter() - began, "s")
    return verified


def _finds_dirt(setting: Setting, figures: Figures) -> None:
    """One byte that is not zero, at the worst places."""
    device = Device(setting)
    nbytes = _MIB
    pointer = device.allocate(nbytes)
    missed = []
    for at in (0, WORD_BYTES - 1, WORD_BYTES, nbytes // 2 + 3, nbytes - 1):
        device.call("cuMemsetD8", pointer, 0, nbytes)
        device.call("cuMemsetD8", pointer + at, 1, 1)
        if ZeroCheck(device.context, device.stream).is_zero(pointer, nbytes):
            missed.append(at)
    figures.expect("the check finds one byte wherever it is", not missed, missed)


# -- check 8 ----------------------------------------------------------------------------------------------------------
def residue(setting: Setting, figures: Figures) -> None:
    """Fill memory with a pattern, kill the process, and count what the next one finds. On the emulator few bytes."""
    reading, writing = os.pipe()
    pid = fork(None, lambda: _fill(setting, writing))
    os.close(writing)
    try:
        if not select.select([reading], [], [], _READY_S)[0] or not (said := os.read(reading, 64)):
            raise DeviceError("the process that fills the memory did not finish")
    finally:
        os.close(reading)
        end(pid, signal.SIGKILL)
    figures.add("filled, then killed", int(said), "bytes")
    found = in_child("count the pattern", lambda: _count(setting, int(said)))
    figures.add("looked at", found[0], "bytes")
    figures.add("not zero", found[1], "bytes" if setting.is_emulated else "words of 8 bytes")
    figures.add("the driver clears what a killed process leaves", found[1] == 0)
    verified = figures.attempt("scrub", lambda: scrub(setting.uuid))
    left = figures.attempt("count after the scrub", lambda: _count(setting, int(said)))
    figures.expect("a scrub leaves nothing", bool(verified and left and left[1] == 0), left)


def _fill(setting: Setting, writing: int) -> None:
    device = Device(setting)
    total = 0
    for pointer, nbytes in _pieces(device, _wanted(setting, device)):
        device.call("cuMemsetD8Async", pointer, _PATTERN, nbytes, device.stream)
        total += nbytes
    device.wait()
    os.write(writing, str(total).encode())
    signal.pause()


def _count(setting: Setting, wanted: int) -> tuple[int, int]:
    """(bytes looked at, what is not zero in them)."""
    device = Device(setting)
    counter = device.allocate(_SMALLEST_PIECE)
    device.call("cuMemsetD8", counter, 0, WORD_BYTES)
    looked = 0
    for pointer, nbytes in _pieces(device, wanted):
        device.kernel("offpath_zero_check", pointer, nbytes, counter).launch(1024, 256)
        looked += nbytes
    device.wait()
    found = ctypes.c_uint64()
    device.call("cuMemcpyDtoH", ctypes.addressof(found), counter, WORD_BYTES)
    return looked, found.value


def _wanted(setting: Setting, device: Device) -> int:
    free, _ = device.context.memory()
    if setting.is_quick or setting.is_emulated:
        return min(_QUICK_BYTES, free // 2)
    return free - _KEPT


def _pieces(device: Device, wanted: int) -> list[tuple[int, int]]:
    """(address, bytes) of new allocations that hold together ``wanted`` bytes, or what there is."""
    pieces, size, left = [], _LARGEST_PIECE, wanted
    while left >= _SMALLEST_PIECE and size >= _SMALLEST_PIECE:
        nbytes = min(size, left // _SMALLEST_PIECE * _SMALLEST_PIECE)
        try:
            pieces.append((device.allocate(nbytes), nbytes))
            left -= nbytes
        except CudaError as fault:
            if fault.code != OUT_OF_MEMORY:
                raise
            size //= 2
    return pieces
