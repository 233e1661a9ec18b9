"""libcuda of the GPU emulator: streams, events, kernels and host functions. Work runs late."""

from __future__ import annotations

import json

import pytest

from .conftest import Cuda, Nvml

SLICE = 4 << 20


def test_work_runs_at_a_wait_or_a_query(nvml: Nvml, cuda: Cuda) -> None:
    nvml(mig="off", slice_bytes=SLICE)
    one = cuda()
    one.do("begin(); v.p = ok(d.cuMemAlloc(64)); v.s = ok(d.cuStreamCreate(1)); v.t = ok(d.cuStreamCreate(1))")
    early = "ok(d.cuMemsetD8Async(v.p, {0}, 64, v.s)); result = [view(v.p, 1)[0], LIBRARY.cuda_emulator_queued()]"
    assert one.do(early.format(1)) == [0, 1], "old bytes"
    assert one.do("ok(d.cuStreamSynchronize(v.t)); result = view(v.p, 1)[0]") == 0, "another stream"
    assert one.do("ok(d.cuStreamSynchronize(v.s)); result = view(v.p, 1)[0]") == 1
    assert one.do(early.format(2)) == [1, 1]
    assert one.do("result = [code(d.cuStreamQuery(v.s)), code(d.cuStreamQuery(v.s)), view(v.p, 1)[0]]") == [600, 0, 2]
    assert one.do(early.format(3)) == [2, 1]
    queried = (
        "e = ok(d.cuEventCreate(0)); ok(d.cuEventRecord(e, v.s)); ok(d.cuMemsetD8Async(v.p, 4, 64, v.s))\n"
        "result = [code(d.cuEventQuery(e)), code(d.cuEventQuery(e)), view(v.p, 1)[0], LIBRARY.cuda_emulator_queued()]"
    )
    assert one.do(queried) == [600, 0, 3, 1], "up to the event, and not beyond"
    assert one.do("result = read(v.p, 1)[0]") == 3, "a blocking copy does not wait for a non-blocking stream"
    assert one.do("ok(d.cuCtxSynchronize()); result = view(v.p, 1)[0]") == 4


def test_a_stream_waits_for_an_event_of_another(nvml: Nvml, cuda: Cuda) -> None:
    nvml(mig="off", slice_bytes=SLICE)
    waited = (
        "begin(); p = ok(d.cuMemAlloc(64)); s = ok(d.cuStreamCreate(1)); t = ok(d.cuStreamCreate(1)); "
        "e = ok(d.cuEventCreate(0))\n"
        "ok(d.cuMemsetD8Async(p, 1, 64, s)); ok(d.cuEventRecord(e, s)); ok(d.cuMemsetD8Async(p, 9, 1, s))\n"
        "ok(d.cuStreamWaitEvent(t, e, 0)); ok(d.cuMemsetD8Async(p, 2, 8, t)); ok(d.cuStreamSynchronize(t))\n"
        "result = [list(view(p, 10)), LIBRARY.cuda_emulator_queued()]\n"
    )
    assert cuda().do(waited) == [[2] * 8 + [1, 1], 1]


def test_the_default_stream_is_ordered_with_blocking_streams(nvml: Nvml, cuda: Cuda) -> None:
    nvml(mig="off", slice_bytes=SLICE)
    ordered = (
        "begin(); p = ok(d.cuMemAlloc(64)); s = ok(d.cuStreamCreate(0)); t = ok(d.cuStreamCreate(0))\n"
        "ok(d.cuMemsetD8Async(p, 1, 3, s)); ok(d.cuMemsetD8(p, 2, 2)); ok(d.cuMemsetD8Async(p, 3, 1, t))\n"
        "ok(d.cuStreamSynchronize(t)); result = list(view(p, 4))"
    )
    assert cuda().do(ordered) == [3, 2, 1, 0]


def test_pinned_memory_is_read_late_and_pageable_memory_at_once(nvml: Nvml, cuda: Cuda) -> None:
    nvml(mig="off", slice_bytes=SLICE)
    one = cuda()
    one.do("import mmap; begin(); v.p = ok(d.cuMemAlloc(64)); v.s = ok(d.cuStreamCreate(1)); v.m = mmap.mmap(-1, 8192)")
    one.do("v.at = ctypes.addressof(ctypes.c_char.from_buffer(v.m))")
    copied = (
        "v.m[:1] = b'a'; ok(d.cuMemcpyHtoDAsync(v.p, v.at, 1, v.s)); v.m[:1] = b'b'; ok(d.cuStreamSynchronize(v.s))\n"
        "result = bytes(view(v.p, 1)).decode()"
    )
    assert one.do(copied) == "a"
    assert one.do(
        "result = [code(d.cuMemHostRegister(v.at, 8192, 0)), code(d.cuMemHostRegister(v.at + 4096, 1, 0))]"
    ) == [0, 712]
    assert one.do(copied) == "b"
    back = (
        "v.m[:1] = b'z'; ok(d.cuMemcpyDtoHAsync(v.at, v.p, 1, v.s)); "
        "result = [v.m[:1].decode(), code(d.cuStreamSynchronize(v.s)), v.m[:1].decode()]"
    )
    assert one.do(back) == ["z", 0, "b"]
    assert one.do("result = [code(d.cuMemHostUnregister(v.at)) for _ in range(2)]") == [0, 713]
    assert one.do(back) == ["b", 0, "b"], "into pageable memory the copy is done on return"
    allocated = (
        "h = ok(d.cuMemAllocHost(100)); "
        "result = [code(d.cuMemFreeHost(h)), code(d.cuMemFreeHost(h)), code(d.cuMemHostRegister(16, 8, 0))]"
    )
    assert one.do(allocated) == [0, 1, 1]


def test_kernels_compute_and_their_arguments_are_checked(nvml: Nvml, cuda: Cuda) -> None:
    nvml(mig="off", slice_bytes=SLICE)
    one = cuda()
    saxpy = (
        "import struct; begin(); x = ok(d.cuMemAlloc(12)); y = ok(d.cuMemAlloc(12))\n"
        "write(x, struct.pack('3f', 1, 2, 3)); write(y, struct.pack('3f', 10, 20, 30))\n"
        "assert launch('offpath_saxpy', 'QFQQ', 3, 0.5, int(x), int(y)) == 0\n"
        "result = struct.unpack('3f', read(y, 12))"
    )
    assert one.do(saxpy) == [10.5, 21.0, 31.5]
    zeros = (
        "p = ok(d.cuMemAlloc(100)); c = ok(d.cuMemAlloc(8)); ok(d.cuMemsetD8(p, 0, 100)); ok(d.cuMemsetD8(c, 0, 8))\n"
        "write(int(p) + 40, b'xyz'); assert launch('offpath_zero_check', 'QQQ', int(p), 100, int(c)) == 0\n"
        "result = int.from_bytes(read(c, 8), 'little')"
    )
    assert one.do(zeros) == 3
    assert one.do("result = [launch('offpath_empty', block=n) for n in (1024, 1025, 0)]") == [0, 1, 1]
    assert one.do("result = code(d.cuLaunchKernel(function('offpath_spin'), 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))") == 1
    assert (
        one.do(
            "f = function('offpath_empty'); ok(d.cuModuleUnload(v.module)); "
            "result = code(d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))"
        )
        == 400
    )


def test_a_module_is_ptx_with_kernels_that_the_emulator_has(nvml: Nvml, cuda: Cuda) -> None:
    nvml(mig="off", slice_bytes=SLICE)
    one = cuda()
    head = ".version 7.0\\n.target sm_80\\n"
    load_it = "result = [code(d.cuModuleLoadData(t.encode())) for t in {}]"
    texts = [
        head + ".visible .entry offpath_empty() { ret; }", head + "// .entry mine() {}\\n/* .entry yours */",
        head + ".entry somebody_elses() { ret; "
            "}", "not PTX", head + ".entry", head + ".entry offpath_empty(.param .u64",
    ]  # fmt: skip
    assert one.do("begin()\n" + load_it.format("[" + ",".join(f"'{text}'" for text in texts) + "]")) == [
        0,
        0,
        209,
        200,
        200,
        200,
    ]
    assert one.do("result = code(d.cuModuleGetFunction(ok(d.cuModuleLoadData(PTX.encode())), b'offpath_other'))") == 500
    one.process.stdin.write(
        json.dumps(f"d.cuModuleLoadData('{head}.entry offpath_spin(.param .u32 n) {{ ret; }}'.encode())") + "\n"
    )  # type: ignore[union-attr]
    stderr = one.end()
    assert one.process.returncode == -6
    assert 'offpath_spin has the parameters "I" in PTX, but "Q" here' in stderr


def test_a_host_function_runs_in_order_and_calls_no_cuda(nvml: Nvml, cuda: Cuda) -> None:
    nvml(mig="off", slice_bytes=SLICE)
    called = (
        "begin(); p = ok(d.cuMemAlloc(8)); seen = []\n"
        "f = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.append([view_at[0], code(d.cuCtxSynchronize())]))\n"
        "view_at = view(p, 1); h = d.CUhostFn(ctypes.cast(f, ctypes.c_void_p).value)\n"
        "ok(d.cuMemsetD8Async(p, 5, 8, 0)); ok(d.cuLaunchHostFunc(0, h, 0)); ok(d.cuMemsetD8Async(p, 6, 8, 0))\n"
        "before = list(seen); ok(d.cuCtxSynchronize()); result = [before, seen]"
    )
    assert cuda().do(called) == [[], [[5, 800]]]


def test_calls_are_counted(nvml: Nvml, cuda: Cuda) -> None:
    nvml(mig="off", slice_bytes=SLICE)
    counted = (
        "begin(); before = [calls(n) for n in ('cuMemAlloc', 'cuMemAlloc_v2', 'cuCtxSetCurrent', 'cuLaunchKernel')]\n"
        "ok(d.cuMemAlloc(4)); launch('offpath_empty'); launch('offpath_empty')\n"
        "result = [calls(n) - b for n, b in zip(('cuMemAlloc', 'cuMemAlloc_v2', 'cuCtxSetCurrent', "
        "'cuLaunchKernel'), before)]"
    )
    assert cuda().do(counted) == [1, 1, 0, 2]


@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_thread_runs_work_by_itself_and_in_order(nvml: Nvml, cuda: Cuda, seed: str) -> None:
    nvml(mig="off", slice_bytes=SLICE)
    one = cuda(OFFPATH_GPU_EMULATOR_ASYNC=seed)
    by_itself = (
        "import time; begin(); p = ok(d.cuMemAlloc(64)); s = [ok(d.cuStreamCreate(i)) for i in (0, 1)]\n"
        "for i in range(1, 9):\n"
        "    ok(d.cuMemsetD8Async(p, i, 8, s[0])); ok(d.cuMemsetD8Async(int(p) + 8, 2 * i, 8, s[1]))\n"
        "end = time.monotonic() + 30\n"
        "while LIBRARY.cuda_emulator_queued() and time.monotonic() < end:\n"
        "    time.sleep(0.001)\n"
        "result = [LIBRARY.cuda_emulator_queued(), list(view(p, 16))]"
    )
    assert one.do(by_itself) == [0, [8] * 8 + [16] * 8]
    assert one.do("launch('offpath_fault'); result = code(d.cuCtxSynchronize())") == 700
