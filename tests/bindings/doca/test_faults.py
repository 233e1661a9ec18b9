"""Every call of DOCA's that the copy engine makes, failing at each of its turns: told in DOCA's words, nothing kept."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from offpath.bindings.doca.copy import DocaCopyEngine
from offpath.bindings.doca.device import Ability, open_device
from offpath.bindings.doca.load import FUNCTIONS, Library
from offpath.bindings.errors import OffpathError
from offpath.bindings.memory.region import Region
from offpath.bindings.ports import MemoryExport

from ...support.doca import HostProcess, environment

Regions = Callable[[bytes], Region]
FAULTS = "DOCA_EMULATOR_FAULTS"
ERROR = "DOCA_ERROR_AUTHENTICATION"  # that no call returns by itself
NBYTES = 256 << 10
ON_THE_DPU = sorted(
    name for name, function in FUNCTIONS.items()
    if function.is_checked and not name.startswith(("doca_comch_", "doca_gpu_", "doca_devinfo_rep_", "doca_dev_rep_"))
    and name not in {
        "doca_task_get_status", "doca_devinfo_get_vhca_id",  # not a failure of the call; for people to read
        "doca_mmap_set_dmabuf_memrange", "doca_mmap_export_pci",  # the host's
        "doca_mmap_get_num_bufs", "doca_buf_inventory_get_num_elements", "doca_buf_inventory_get_num_free_elements",
        "doca_pe_get_num_inflight_tasks",  # the tests'
    }
)  # fmt: skip
MOST_TURNS = 40


def scenario(doca: Library, descriptor: dict[str, Any], logged: Callable[[], str]) -> str:
    """A daemon's life with one lane. Returns what went wrong, in our words; empty: nothing."""
    near = Region.create("near", 2 * NBYTES)
    try:
        return live(doca, descriptor, near) + logged()
    finally:
        near.close()


def live(doca: Library, descriptor: dict[str, Any], near: Region) -> str:
    said: list[str] = []
    try:
        engine = DocaCopyEngine(open_device(doca, Ability.COPY, "03:00.0"))
    except OffpathError as fault:
        return str(fault)
    try:
        memory = engine.import_memory(MemoryExport(descriptor))
        try:
            for into in (True, False):
                sides = (near, 0, memory, 0) if into else (memory, 0, near, 0)
                done = engine.post(1, *sides, NBYTES)
                for _ in range(1000):
                    if done is not None:
                        break
                    done = next(iter(engine.poll()), None)
                assert done is not None, "a copy that never completes"
                said.append(done.error or "")
            done = engine.post(2, near, 0, near, NBYTES, NBYTES)
            while done is None:
                done = next(iter(engine.poll()), None)
            said.append(done.error or "")
        finally:
            memory.close()
    except OffpathError as fault:
        said.append(str(fault))
    finally:
        engine.close()
        engine.close()
    return " ".join(said)


@pytest.mark.parametrize("name", ON_THE_DPU)
def test_a_call_that_fails_is_told_and_leaves_nothing_behind(
    doca: Library,
    host: HostProcess,
    name: str,
    regions: Regions,
    caplog: pytest.LogCaptureFixture,
    count_fds: Any,
) -> None:
    descriptor = host.export(regions(bytes(2 * NBYTES)), NBYTES, NBYTES)

    def logged() -> str:
        return " " + caplog.text

    assert not scenario(doca, descriptor, logged).strip()
    before = count_fds()
    for turn in range(1, MOST_TURNS):
        caplog.clear()
        with environment(**{FAULTS: f"{name}:{turn}=AUTHENTICATION"}):
            said = scenario(doca, descriptor, logged)
        if not said.strip():
            break
        assert ERROR in said, "in DOCA's own words"
        assert name in said or "copy:" in said, "and of which call"
        gc.collect()
        assert count_fds() == before
        caplog.clear()
        assert not scenario(doca, descriptor, logged).strip(), "and the next one is as if nothing had been"
    assert 1 < turn < MOST_TURNS - 1


@pytest.mark.parametrize(
    "name",
    [
        "doca_devinfo_create_list", "doca_dev_open", "doca_mmap_create", "doca_mmap_add_dev", "doca_mmap_start",
        "doca_mmap_set_permissions", "doca_mmap_set_memrange", "doca_mmap_export_pci",
        "doca_mmap_cap_is_export_pci_supported",
    ],
)  # fmt: skip
def test_a_lane_that_cannot_be_exported_says_why(doca: Library, regions: Regions, name: str) -> None:
    far = regions(bytes(8192))
    for turn in (1, 2):
        host = HostProcess(**{FAULTS: f"{name}:{turn}=AUTHENTICATION"})
        error = host.ask_export(far, 4096, 4096).get("error", "")
        host.close()
        if turn == 1 or error:  # some are called once
            assert ERROR in error
            assert name in error
