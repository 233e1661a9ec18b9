"""libcuda of the GPU emulator: memory that peers reach by a descriptor."""

from __future__ import annotations

import os
import socket
from mmap import PAGESIZE as PAGE
from pathlib import Path

import pynvml
import pytest

from .conftest import Cuda, Nvml
from .mig import destroy, instance

SLICE = 4 << 20
EXPORT = "ok(d.cuMemGetHandleForAddressRange({}, {}, d.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0))"


def test_an_export_is_made_of_whole_pages_of_one_allocation(nvml: Nvml, cuda: Cuda) -> None:
    nvml(mig="off", slice_bytes=SLICE)
    one = cuda()
    one.do(
        f"begin(); v.p = int(ok(d.cuMemAlloc({4 * PAGE}))); v.fds = []; "
        "D = d.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD; v.D = D"
    )
    exported = "result = [code(d.cuMemGetHandleForAddressRange(v.p + at, n, v.D, f)) for at, n, f in {}]"
    assert one.do(
        exported.format(
            [(1, PAGE, 0), (0, PAGE - 1, 0), (0, 0, 0), (0, 5 * PAGE, 0), (4 * PAGE, PAGE, 0), (0, PAGE, 1)]
        )
    ) == [1] * 5 + [801]
    whole = [(PAGE, 2 * PAGE, 0), (PAGE, 2 * PAGE, 0), (0, 2 * PAGE, 0), (0, PAGE, 0)]
    assert one.do(exported.format(whole)) == [0, 0, 801, 0]


@pytest.mark.parametrize("ordering", [0, 100])
def test_what_a_peer_writes_needs_a_flush_below_ordering_100(nvml: Nvml, cuda: Cuda, ordering: int) -> None:
    nvml(mig="off", slice_bytes=SLICE, ordering=ordering)
    one = cuda()
    one.do(f"begin(); v.p = ok(d.cuMemAlloc({PAGE})); write(v.p, b'old' * 100); v.fd = " + EXPORT.format("v.p", PAGE))
    assert one.do("result = [os.fstat(v.fd).st_size, os.pread(v.fd, 3, 0).decode()]") == [PAGE, "old"]
    assert one.do("os.pwrite(v.fd, b'new', 0); result = read(v.p, 6).decode()") == ("newold" if ordering else "oldold")
    flush = (
        "T, S = d.CUflushGPUDirectRDMAWritesTarget, d.CUflushGPUDirectRDMAWritesScope\n"
        "ok(d.cuFlushGPUDirectRDMAWrites(T(0), S(100))); result = read(v.p, 6).decode()"
    )
    assert one.do(flush) == "newold"
    result = (
        "os.pwrite(v.fd, b'IN', 100); ok(d.cuMemsetD8Async(v.p, 0x41, 2, 0)); result = os.pread(v.fd, 3, 0).decode()"
    )
    assert one.do(result) == "new"
    assert one.do(
        "ok(d.cuCtxSynchronize()); result = [os.pread(v.fd, 3, 0).decode(), os.pread(v.fd, 2, 100).decode()]"
    ) == ["AAw", "IN"], "the device's bytes reach peers when the work is done, and take nothing of theirs away"


def test_an_export_keeps_the_instance_in_use_wherever_it_is_open(nvml: Nvml, cuda: Cuda, tmp_path: Path) -> None:
    held = instance(nvml(slice_bytes=SLICE))
    one = cuda(CUDA_VISIBLE_DEVICES=held[2])
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(str(tmp_path / "s"))
    server.listen()
    sent = (
        f"import socket; begin(); p = ok(d.cuMemAlloc({PAGE})); write(p, b'kept'); fd = {EXPORT.format('p', PAGE)}\n"
        f"s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect({str(tmp_path / 's')!r}); "
        "socket.send_fds(s, [b'x'], [fd])"
    )
    one.do(sent)
    link, _ = server.accept()
    _, (fd,), _, _ = socket.recv_fds(link, 1, 1)
    link.close()
    server.close()
    for end in (lambda: None, one.kill):
        end()
        with pytest.raises(pynvml.NVMLError_InUse):
            destroy(*held[:2])
        if end is one.kill:
            break
    assert os.pread(fd, 4, 0) == b"kept"
    os.close(fd)
    pynvml.nvmlGpuInstanceDestroy(held[0])


@pytest.mark.parametrize("ordering", [0, 100])
def test_exported_memory_leaves_its_bytes_to_the_next_process(nvml: Nvml, cuda: Cuda, ordering: int) -> None:
    uuid = instance(nvml(slice_bytes=SLICE, ordering=ordering))[2]
    one = cuda(CUDA_VISIBLE_DEVICES=uuid)
    one.do(
        "begin(); v.p = ok(d.cuMemAlloc(4 << 20)); v.fd = "
        + EXPORT.format("v.p", PAGE)
        + f"; ok(d.cuMemsetD8(v.p, 0xAB, {PAGE})); ok(d.cuCtxSynchronize())"
    )
    one.kill()
    last = f"begin(); p = ok(d.cuMemAlloc(4 << 20)); result = read(p, {PAGE})[-1]"
    assert cuda(CUDA_VISIBLE_DEVICES=uuid).do(last) == 0xAB


def test_a_whole_gpu_keeps_its_mode_while_memory_of_it_is_exported(nvml: Nvml, cuda: Cuda) -> None:
    device = nvml(mig="off", slice_bytes=SLICE)
    one = cuda()
    one.do(f"begin(); v.p = ok(d.cuMemAlloc({PAGE})); v.fd = {EXPORT.format('v.p', PAGE)}")
    one.do("ok(d.cuDevicePrimaryCtxRelease(0))")
    assert pynvml.nvmlDeviceSetMigMode(device, 1) == pynvml.NVML_ERROR_IN_USE
    one.do("os.close(v.fd)")
    assert pynvml.nvmlDeviceSetMigMode(device, 1) == 0
