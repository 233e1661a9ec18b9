"""GPUNetIO's memory, on a GPU that is the emulator's: no claim about any other."""

from __future__ import annotations

import pytest

from offpath.bindings.doca.device import Ability, open_device
from offpath.bindings.doca.gpu import Gpu, GpuMemory
from offpath.bindings.doca.load import Library
from offpath.bindings.doca.memory import Mmap
from offpath.bindings.errors import DocaError

from ...support.doca import environment

PCI = "0000:3b:00.0"
NBYTES, ALIGNMENT = 256 << 10, 64 << 10


@pytest.mark.parametrize("by_dmabuf", [True, False])
def test_a_gpu_s_memory_can_be_exported_by_its_dma_buf_or_its_pointer(doca: Library, by_dmabuf: bool) -> None:
    with environment(DOCA_EMULATOR_SIDE="host", DOCA_EMULATOR_DMABUF=str(int(by_dmabuf))):
        gpu = Gpu(doca, PCI)
        memory = GpuMemory(gpu, NBYTES, ALIGNMENT)
        assert memory.address % ALIGNMENT == 0
        fd = memory.dmabuf()
        assert (fd is not None) is by_dmabuf
        assert memory.dmabuf() == fd
        device = open_device(doca, Ability.EXPORT)
        where = (fd, 0) if fd is not None else None
        shared = Mmap.shared(device, memory.address, NBYTES, is_written=True, dmabuf=where)
        assert len(shared.export()) > 0
        device.close()
        gpu.close()
        gpu.close()
        assert memory.is_closed


def test_a_gpu_without_dma_buf_and_without_peermem_is_told_so(doca: Library) -> None:
    with environment(DOCA_EMULATOR_SIDE="host", DOCA_EMULATOR_DMABUF="0", DOCA_EMULATOR_PEERMEM="0"):
        gpu, device = Gpu(doca, PCI), open_device(doca, Ability.EXPORT)
        memory = GpuMemory(gpu, NBYTES, ALIGNMENT)
        with pytest.raises(DocaError, match="doca_mmap_start: DOCA_ERROR_DRIVER"):
            Mmap.shared(device, memory.address, NBYTES, is_written=True)
        device.close()
        gpu.close()


def test_an_address_without_a_gpu_is_refused(doca: Library) -> None:
    with pytest.raises(DocaError, match="doca_gpu_create: DOCA_ERROR_NOT_FOUND"):
        Gpu(doca, "0000:99:00.0")
