"""Where DOCA is looked for, and what becomes of a release that lacks something."""

from __future__ import annotations

import os
import shutil
from ctypes import byref
from pathlib import Path

import pytest

from offpath.bindings.doca._abi_types import HANDLE, U16
from offpath.bindings.doca._check import check
from offpath.bindings.doca.device import Ability, devices, open_device
from offpath.bindings.doca.load import PATH_VARIABLE, Library, load
from offpath.bindings.errors import DeviceGone, DocaError, DocaMissing, DocaTooOld

from ...support.doca import emulator, environment, on_the_dpu


def test_a_folder_that_is_named_counts_more_than_the_environment(tmp_path: Path) -> None:
    with environment(**{PATH_VARIABLE: str(tmp_path)}):
        assert load(emulator()).folder == emulator()
    with environment(**{PATH_VARIABLE: emulator()}):
        assert load().folder == emulator()


def test_a_folder_without_doca_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(DocaMissing, match=rf"libdoca_common.so.2: not in {tmp_path} \(install DOCA"):
        load(str(tmp_path))


def test_a_file_that_is_no_library_says_what_the_loader_says(tmp_path: Path) -> None:
    (tmp_path / "libdoca_common.so.2").write_bytes(b"no library")
    with pytest.raises(DocaMissing, match=r"libdoca_common.so.2: .*(header|file too short)"):
        load(str(tmp_path))


@pytest.mark.parametrize("suffix", [".so.3", ".so"])
def test_another_soname_is_found_too_for_all_libraries(tmp_path: Path, suffix: str) -> None:
    for name in ("common", "dma"):
        shutil.copy(os.path.join(emulator(), f"libdoca_{name}.so.2"), tmp_path / f"libdoca_{name}{suffix}")
    doca = load(str(tmp_path))
    with on_the_dpu():
        assert [info.pci for info in devices(doca)] == ["0000:03:00.0"]


def test_the_release_is_asked_of_the_library() -> None:
    assert load(emulator()).version == "3.0.0-emulated"
    assert load(emulator("2.5")).version == "2.5.0-emulated"
    assert load(emulator("2.5")).is_emulated


def test_a_function_that_a_release_lacks_is_an_error_of_its_call_alone() -> None:
    old = load(emulator("2.5"))
    with on_the_dpu():
        assert not old.has("doca_devinfo_get_vhca_id")
        device = open_device(old, Ability.COPY)
        found = U16()
        with pytest.raises(DocaTooOld, match=r"doca_devinfo_get_vhca_id: not in DOCA 2.5.0-emulated: added in 3.0"):
            old.call("doca_devinfo_get_vhca_id", device.devinfo, byref(found))
        assert device.info.vhca is None
        device.close()


def test_a_library_that_a_release_lacks_is_an_error_of_its_calls_alone() -> None:
    old = load(emulator("2.5"))
    with on_the_dpu():
        (info,) = devices(old)
        assert info.abilities == {Ability.COPY}
        with pytest.raises(DocaMissing, match=r"libdoca_comch.so.2: not in"):
            old.call("doca_comch_cap_server_is_supported", HANDLE())


def test_a_status_becomes_an_error_with_doca_s_name_and_text_and_what_to_look_at(doca: Library) -> None:
    with pytest.raises(DocaError, match=r"doca_pe_destroy: DOCA_ERROR_INVALID_VALUE: .+ \(addresses") as raised:
        doca.call("doca_pe_destroy", None)
    assert (raised.value.code, raised.value.name) == (6, "DOCA_ERROR_INVALID_VALUE")
    assert raised.value.call == "doca_pe_destroy"


def test_a_status_that_is_expected_comes_back(doca: Library) -> None:
    assert doca.call("doca_pe_destroy", None, expect=(6,)) == 6


def test_a_status_that_is_newer_than_we_are_has_the_name_that_the_library_gives_it() -> None:
    def describe(status: int) -> tuple[str, str]:
        return {31: ("DOCA_ERROR_DEVICE_FATAL_ERROR", "Fatal"), 32: ("DOCA_ERROR_NEWER", "Newer")}[status]

    with pytest.raises(DeviceGone, match="doca_task_submit: DOCA_ERROR_DEVICE_FATAL_ERROR: Fatal"):
        check(31, "doca_task_submit", describe)
    with pytest.raises(DocaError, match=r"^doca_task_submit: DOCA_ERROR_NEWER: Newer$"):
        check(32, "doca_task_submit", describe)
    check(0, "doca_task_submit", describe)


def test_a_status_that_not_even_the_library_knows_is_an_error_still(doca: Library) -> None:
    with pytest.raises(DocaError, match=r"^any: .+") as raised:
        check(99, "any", doca.describe)
    assert raised.value.code == 99
