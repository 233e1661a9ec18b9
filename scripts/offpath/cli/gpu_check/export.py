"""Check 5: which parts of an allocation the driver exports as dma-buf, and how long such a descriptor is good."""

from __future__ import annotations

import mmap
import os
import socket
from typing import Any, Final

from offpath.cli.bench.gpu.device import Device, code_of
from offpath.cli.bench.gpu.setting import Setting, in_child
from offpath.cli.gpu_check.figures import Figures, NotPossible

_MIB: Final = 1 << 20
_BLOCK: Final = 8 * _MIB
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_KIND: Final = 1
_MMAP_ATTRIBUTE: Final = 152
_RANGES: Final = {
    "whole block": (0, _BLOCK), "first 2 MiB": (0, 2 * _MIB), "second 2 MiB": (2 * _MIB, 2 * _MIB),
    "first 64 KiB": (0, 65_536), "second 64 KiB": (65_536, 65_536), "first page": (0, _PAGE),
    "second page": (_PAGE, _PAGE), "one byte": (0, 1), "half a page": (0, _PAGE // 2), "offset 1": (1, _PAGE),
    "offset of half a page": (_PAGE // 2, _PAGE), "beyond the block": (_BLOCK - _PAGE, 2 * _PAGE),
    "nothing": (0, 0),
}  # fmt: skip


def export(setting: Setting, figures: Figures) -> None:
    """The matrix of ranges, flags, and what outlives memory and process."""
    if not in_child("attributes", lambda: _exports(setting)):
        raise NotPossible(
            "the device exports no dma-buf (attribute 124): the proprietary kernel modules, or an old one"
        )
    figures.attempt("ranges", lambda: _ranges(setting, figures))
    figures.attempt("memory that is not one allocation", lambda: _odd_memory(setting, figures))
    figures.attempt("a descriptor after its memory", lambda: _after_free(setting, figures))
    _after_process(setting, figures)


def _exports(setting: Setting) -> bool:
    return Device(setting).context.exports_dmabuf


def _get(device: Device, pointer: int, nbytes: int, flags: int = 0) -> int:
    """A descriptor. Raises: CudaError."""
    kind = device.driver.api.CUmemRangeHandleType(_KIND)
    return int(device.call("cuMemGetHandleForAddressRange", pointer, nbytes, kind, flags))


def _code(device: Device, pointer: int, nbytes: int, flags: int = 0) -> int:
    """The code of an export, whose descriptor is closed."""
    return code_of(lambda: os.close(_get(device, pointer, nbytes, flags)))


def _ranges(setting: Setting, figures: Figures) -> None:
    device = Device(setting)
    base = device.allocate(_BLOCK)
    codes = {name: _code(device, base + at, nbytes) for name, (at, nbytes) in _RANGES.items()}
    for name, code in codes.items():
        figures.add(f"code: {name}", code)
    figures.add("code: flags 1 (PCIe mapping)", _code(device, base, _BLOCK, 1))
    figures.expect("the whole block, as lanes use it, is exported", codes["whole block"] == 0, codes["whole block"])
    fd = _get(device, base, _BLOCK)
    figures.add("descriptor", os.readlink(f"/proc/self/fd/{fd}"))
    with open(f"/proc/self/fdinfo/{fd}", encoding="utf-8", errors="replace") as file:
        figures.add("fdinfo", file.read().split("\n"))
    figures.add("size by lseek", os.lseek(fd, 0, os.SEEK_END), "bytes")
    handle = device.call("cuDeviceGet", 0)
    figures.add("dma_buf_mmap (152)", device.driver.attribute(handle, _MMAP_ATTRIBUTE))
    figures.add("mmap by the CPU", _mapped(fd))
    second = _get(device, base, _BLOCK)
    figures.add("a second export is another descriptor", second != fd)
    for each in (fd, second):
        os.close(each)


def _mapped(fd: int) -> str:
    try:
        with mmap.mmap(fd, _PAGE) as view:
            return f"works, first byte {view[0]}"
    except (OSError, ValueError) as fault:
        return str(fault)


def _odd_memory(setting: Setting, figures: Figures) -> None:
    device = Device(setting)
    small = device.allocate(_PAGE)
    figures.add("code: allocation of one page", _code(device, small, _PAGE))
    freed = device.allocate(_BLOCK)
    device.call("cuMemFree", freed)
    figures.add("code: freed memory", _code(device, freed, _BLOCK))
    host = int(device.call("cuMemAllocHost", _BLOCK))
    figures.add("code: pinned host memory", _code(device, host, _BLOCK))


def _after_free(setting: Setting, figures: Figures) -> None:
    """What `cuMemFree` does while an export is open."""
    device = Device(setting)
    base = device.allocate(_BLOCK)
    before, _ = device.context.memory()
    fd = _get(device, base, _BLOCK)
    figures.add("code of cuMemFree under an open export", code_of(lambda: device.call("cuMemFree", base)))
    figures.add("free memory while it is open", device.context.memory()[0] - before, "bytes more")
    os.close(fd)
    figures.add("free memory once it is closed", device.context.memory()[0] - before, "bytes more")


def _after_process(setting: Setting, figures: Figures) -> None:
    """A descriptor that its process sent away before it ended."""
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def send() -> Any:
            device = Device(setting)
            base = device.allocate(_BLOCK)
            device.call("cuMemsetD8", base, 7, _BLOCK)
            fd = _get(device, base, _BLOCK)
            socket.send_fds(theirs, [b"x"], [fd])
            return device.context.memory()[0]

        before = figures.attempt("send a descriptor", send)
        if before is None:
            return
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    figures.add("a descriptor beyond its process: fstat", os.fstat(fds[0]).st_size, "bytes")
    held = figures.attempt("free memory beyond the process", lambda: Device(setting).context.memory()[0])
    os.close(fds[0])
    closed = figures.attempt("free memory after its close", lambda: Device(setting).context.memory()[0])
    if held is not None and closed is not None:
        figures.add("bytes that the descriptor kept", closed - held)
