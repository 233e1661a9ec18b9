"""NVLinks between GPUs as NVML reports them: direct ones, those through NVSwitches, none, and failures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.nvml import links
from offpath.bindings.nvml.links import linked
from offpath.bindings.nvml.session import Nvml

from ...support.gpu_machine import Machine

pytestmark = pytest.mark.gpu
Open = Callable[..., tuple[Nvml, list[str]]]
CALLS = (
    "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo", "nvmlDeviceGetCount",
    "nvmlDeviceGetP2PStatus",
)  # fmt: skip


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """``opened(**settings)``: NVML of a machine with four whole GPUs, and their UUIDs."""
    made: list[Any] = []

    def start(**settings: str) -> tuple[Nvml, list[str]]:
        made.append(Machine(tmp_path / "machine", **{"gpus": "4", "mig": "off", **settings}))
        made.append(Nvml())
        return made[-1], [gpu.uuid for gpu in made[-1].gpus()]

    yield start
    for each in reversed(made):
        each.close()


def test_direct_links_are_counted_for_each_gpu_at_their_end(opened: Open) -> None:
    nvml, gpus = opened(nvlinks="0-1:4,2-3:4,0-2:2")
    a, b, c, d = gpus
    assert [linked(nvml, gpu) for gpu in gpus] == [{b: 4, c: 2}, {a: 4}, {a: 2, d: 4}, {c: 4}]


def test_links_to_switches_lead_to_every_gpu_behind_them(opened: Open) -> None:
    nvml, gpus = opened(nvlinks="switch:18")
    for gpu in gpus:
        assert linked(nvml, gpu) == {other: 18 for other in gpus if other != gpu}


def test_a_gpu_that_is_not_reached_through_the_switches_is_none(opened: Open) -> None:
    nvml, gpus = opened(nvlinks="switch:12")
    nvml.call("nvmlDeviceSetMigMode", nvml.device(gpus[1]), 1)
    assert linked(nvml, gpus[0]) == {gpus[2]: 12, gpus[3]: 12}
    assert linked(nvml, gpus[1]) == {}


def test_a_link_whose_other_end_has_no_address_leads_to_a_switch(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml, gpus = opened(nvlinks="switch:1")
    monkeypatch.setenv("OFFPATH_GPU_EMULATOR_FAULTS", "nvmlDeviceGetNvLinkRemotePciInfo:1=3")
    assert linked(nvml, gpus[0]) == dict.fromkeys(gpus[1:], 1)


def test_a_machine_without_nvlink_has_no_links_and_nothing_is_logged(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    nvml, gpus = opened()
    assert [linked(nvml, gpu) for gpu in gpus] == [{}] * 4
    assert caplog.records == []


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("code", [13, 15, 999], ids=["missing", "lost", "unknown"])
def test_a_failure_is_logged_and_means_no_links(
    opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str, code: int
) -> None:
    nvml, gpus = opened(nvlinks="switch:2")
    monkeypatch.setenv("OFFPATH_GPU_EMULATOR_FAULTS", f"{call}:1={code}")
    with caplog.at_level(logging.WARNING):
        assert linked(nvml, gpus[0]) == {}
    assert [(record.levelname, gpus[0] in record.message) for record in caplog.records] == [("WARNING", True)]
    assert len(linked(nvml, gpus[0])) == 3, "the fault was for one call"


def test_a_package_that_knows_more_links_than_any_gpu_has_is_bounded(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml, gpus = opened(nvlinks="switch:2")
    monkeypatch.setattr(nvml.module, "NVML_NVLINK_MAX_LINKS", 1 << 40)
    assert set(linked(nvml, gpus[0]).values()) == {2}


# -- planted bugs -----------------------------------------------------------------------------------------------------
BUGS = {
    "takes_every_gpu_for_one_behind_the_switches": (
        "_is_reached", lambda nvml, handle, other: True, test_a_gpu_that_is_not_reached_through_the_switches_is_none,
    ),
    "counts_links_that_are_not_active": (
        "_ends", lambda nvml, handle: [None] * 18, test_a_gpu_that_is_not_reached_through_the_switches_is_none,
    ),
    "compares_only_the_numbers_of_devices_on_their_buses": (
        "_address", lambda pci: (0, 0, pci.device), test_direct_links_are_counted_for_each_gpu_at_their_end,
    ),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    name, wrong, test = BUGS[bug]
    monkeypatch.setattr(links, name, wrong)
    with pytest.raises(AssertionError):
        test(opened)
