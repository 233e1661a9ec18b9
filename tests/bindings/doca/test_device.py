"""Which device is used: by what it can do and what it is called, never by the order of a list."""

from __future__ import annotations

import pytest

from offpath.bindings.doca.device import (
    Ability,
    devices,
    open_device,
    open_representor,
    representors,
    shows_representors,
)
from offpath.bindings.doca.load import Library
from offpath.bindings.errors import DocaError, NoDocaDevice

from ...support.doca import environment


@pytest.mark.parametrize("name", ["", "0000:03:00.0", "03:00.0", "mlx5_0", "p0"])
def test_a_device_is_found_by_address_rdma_device_and_interface(doca: Library, name: str) -> None:
    device = open_device(doca, Ability.COPY, name)
    assert (device.info.pci, device.info.ibdev, device.info.netdev) == ("0000:03:00.0", "mlx5_0", "p0")
    assert str(device.info) == "0000:03:00.0 (mlx5_0, p0)"
    assert device.info.copy_bytes == 2 << 20
    assert device.info.vhca is not None
    device.close()


@pytest.mark.parametrize("name", ["0000:04:00.0", "mlx5_7", "x", "no:address", "::"])
def test_a_name_that_nothing_has_is_refused_with_what_there_is(doca: Library, name: str) -> None:
    with pytest.raises(NoDocaDevice, match=rf"no device to copy, named {name}: there are 0000:03:00.0 \(mlx5_0, p0\)"):
        open_device(doca, Ability.COPY, name)


def test_a_device_that_is_there_but_not_able_is_not_opened(doca: Library) -> None:
    with environment(DOCA_EMULATOR_DMA="0"), pytest.raises(NoDocaDevice, match="no device to copy"):
        open_device(doca, Ability.COPY, "mlx5_0")
    with pytest.raises(NoDocaDevice, match="no device to export"):  # that is the host's to do
        open_device(doca, Ability.EXPORT)


def test_of_several_that_fit_none_is_guessed(doca: Library) -> None:
    with environment(DOCA_EMULATOR_DEVICES="2"):
        assert [info.pci for info in devices(doca)] == ["0000:03:00.0", "0000:04:00.0"]
        with pytest.raises(NoDocaDevice, match=r"several devices to copy: 0000:03:00.0 .*0000:04:00.0 .*name one"):
            open_device(doca, Ability.COPY)
        device = open_device(doca, Ability.COPY, "04:00.0")
        assert device.info.ibdev == "mlx5_1"
        device.close()


def test_a_machine_without_devices_is_told_so(doca: Library) -> None:
    with environment(DOCA_EMULATOR_DEVICES="0"):
        assert devices(doca) == []
        with pytest.raises(NoDocaDevice, match="DOCA lists none"):
            open_device(doca, Ability.COPY)


def test_the_host_s_functions_are_seen_from_the_dpu_by_the_host_s_addresses(doca: Library) -> None:
    device = open_device(doca, Ability.COPY)
    assert shows_representors(device)
    assert representors(device) == ["0000:5c:00.0"]
    for name in ("", "0000:5c:00.0", "5c:00.0"):
        representor = open_representor(device, name)
        assert representor.pci == "0000:5c:00.0"
        representor.close()
    with pytest.raises(NoDocaDevice, match=r"no representor 03:00.0: there are 0000:5c:00.0"):
        open_representor(device, "03:00.0")
    device.close()


def test_on_the_host_there_are_no_representors(doca: Library) -> None:
    with environment(DOCA_EMULATOR_SIDE="host"):
        device = open_device(doca, Ability.EXPORT)
        assert not shows_representors(device)
        with pytest.raises(DocaError, match=r"NOT_SUPPORTED.*representors are visible on the DPU only"):
            representors(device)
        device.close()
