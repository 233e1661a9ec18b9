"""A process that uses CUDA on the emulator: runs what its parent sends, a line of JSON each, and answers in JSON.

Code sees ``d`` (cuda.bindings.driver), the functions below, and what earlier code left in ``v``.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from types import SimpleNamespace
from typing import Any

import cuda.bindings.driver as d

PTX = """//
.version 7.0
.target sm_80
.address_size 64
.visible .entry offpath_empty() { ret; }
.visible .entry offpath_zero_check(.param .u64 address, .param .u64 nbytes, .param .u64 count) { ret; }
.visible .entry offpath_fill(.param .u64 address, .param .u64 nbytes, .param .u32 value) { ret; }
.visible .entry offpath_saxpy(.param .u64 n, .param .f32 a, .param .u64 x, .param .u64 y) { ret; }
.visible .entry offpath_spin(.param .u64 nanoseconds) { ret; }
.visible .entry offpath_fault() { ret; }
"""
LIBRARY = ctypes.CDLL(os.path.join(sys.argv[1], "libcuda.so.1"), os.RTLD_NOW | ctypes.RTLD_GLOBAL)
LIBRARY.cuda_emulator_host_address.restype = ctypes.c_void_p
LIBRARY.cuda_emulator_host_address.argtypes = [ctypes.c_uint64]
LIBRARY.cuda_emulator_calls.restype = ctypes.c_uint64
LIBRARY.cuda_emulator_queued.restype = ctypes.c_uint64
v = SimpleNamespace()


class Failed(Exception):
    """A call returned another code than 0."""


def code(answer: Any) -> int:
    """The code of a call's answer."""
    return int(answer[0])


def ok(answer: Any) -> Any:
    """What a call returned besides success."""
    if code(answer):
        raise Failed(code(answer))
    return answer[1] if len(answer) == 2 else answer[1:] or None


def begin() -> Any:
    """cuInit, and the primary context of device 0 as the current one."""
    ok(d.cuInit(0))
    context = ok(d.cuDevicePrimaryCtxRetain(0))
    ok(d.cuCtxSetCurrent(context))
    return context


def write(ptr: Any, content: bytes) -> None:
    """A blocking copy to the device."""
    ok(d.cuMemcpyHtoD(ptr, content, len(content)))


def read(ptr: Any, count: int) -> bytes:
    """A blocking copy from the device."""
    into = bytearray(count)
    ok(d.cuMemcpyDtoH(into, ptr, count))
    return bytes(into)


def view(ptr: Any, count: int) -> Any:
    """The bytes behind a device pointer, as only the emulator shows them."""
    return (ctypes.c_ubyte * count).from_address(LIBRARY.cuda_emulator_host_address(int(ptr)))


def function(name: str) -> Any:
    """A kernel of the module above."""
    if not hasattr(v, "module"):
        v.module = ok(d.cuModuleLoadData(PTX.encode()))
    return ok(d.cuModuleGetFunction(v.module, name.encode()))


TYPES = {"Q": ctypes.c_uint64, "I": ctypes.c_uint32, "F": ctypes.c_float}


def launch(name: str, types: str = "", *values: Any, stream: Any = 0, block: int = 32) -> int:
    """Code of a launch with these arguments."""
    arguments = (tuple(values), tuple(TYPES[each] for each in types)) if types else 0
    return code(d.cuLaunchKernel(function(name), 1, 1, 1, block, 1, 1, 0, stream, arguments, 0))


def calls(name: str) -> int:
    """How often a function was called in this process."""
    return int(LIBRARY.cuda_emulator_calls(name.encode()))


def main() -> None:
    """Reads requests until the parent closes the pipe."""
    scope = dict(globals())
    for line in sys.stdin:
        scope["result"] = None
        try:
            exec(json.loads(line), scope)
            answer = {"result": scope["result"]}
        except Failed as failure:
            answer = {"code": failure.args[0]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
