"""`offpath doctor` on DOCA: what is missing is named once, with what to do about it; an emulator is called one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from offpath.dpu_daemon.config import DaemonConfig, parse_config
from offpath.dpu_daemon.doctor.doca import check_doca
from offpath.dpu_daemon.doctor.findings import CODES, Severity

from ..support.doca import emulator, environment, on_the_dpu

OK, NOTE, ERROR = Severity.OK, Severity.NOTE, Severity.ERROR


@pytest.fixture(autouse=True)
def _emulated() -> Iterator[None]:
    with on_the_dpu(OFFPATH_DOCA_PATH=emulator()):
        yield


def configured(**doca: str) -> DaemonConfig:
    raw = {"tenant": [{"name": "ada", "uids": [0]}], "datapath": {"copy_engine": "doca"}, "doca": doca}
    return parse_config(raw, "here")


def by_comch(**doca: str) -> DaemonConfig:
    raw = {
        "tenant": [{"name": "ada", "uids": [0]}],
        "datapath": {"copy_engine": "doca", "host_channel": "comch"},
        "doca": doca,
    }
    return parse_config(raw, "here")


def judged(config: DaemonConfig | None) -> list[tuple[str, Severity, str]]:
    """Every finding must be fit to be shown."""
    found = list(check_doca(config))
    for finding in found:
        assert finding.code in CODES
        assert (finding.fix == "") == (finding.severity is OK), finding
    return [(finding.code, finding.severity, finding.what) for finding in found]


def test_a_machine_without_doca_hears_of_it_once_and_as_a_note(tmp_path: Path) -> None:
    fix = "install DOCA, or name the folder of its libraries in OFFPATH_DOCA_PATH"
    missing = f"libdoca_common.so.2: not in {tmp_path} ({fix})"
    with environment(OFFPATH_DOCA_PATH=str(tmp_path)):
        assert judged(None) == [("doca", NOTE, missing)]
    assert judged(configured(path=str(tmp_path))) == [("doca", ERROR, missing)]


def test_release_devices_and_the_host_s_functions_are_listed() -> None:
    emulated = f"3.0.0-emulated in {emulator()}: an emulator, which copies by the processor"
    device = "0000:03:00.0 (mlx5_0, p0) can copy, serve, 2048 KiB in one task"
    assert judged(None) == [("doca", NOTE, emulated), ("doca-device", OK, device)]
    assert judged(configured())[2:] == [
        ("doca-representor", OK, "0000:03:00.0 (mlx5_0, p0) sees the host's 0000:5c:00.0")
    ]


def test_a_machine_without_a_device_cannot_run_a_daemon_that_copies_by_doca() -> None:
    with environment(DOCA_EMULATOR_DEVICES="0"):
        assert judged(None)[1] == ("doca-device", NOTE, "DOCA shows no device")
        assert [(code, severity) for code, severity, _ in judged(configured())] == [
            ("doca", NOTE), ("doca-device", ERROR), ("doca-device", ERROR)
        ]  # fmt: skip


def test_a_device_that_is_not_there_is_an_error_that_lists_those_that_are() -> None:
    *_, (code, severity, what) = judged(configured(device="mlx5_3"))
    assert (code, severity) == ("doca-device", ERROR)
    assert what.startswith("no device to copy, named mlx5_3: there are 0000:03:00.0 (mlx5_0, p0) to copy, serve")


def test_calls_that_fail_are_told_and_end_nothing() -> None:
    with environment(DOCA_EMULATOR_FAULTS="doca_devinfo_create_list:1=DRIVER"):
        assert "doca_devinfo_create_list: DOCA_ERROR_DRIVER" in judged(configured())[-1][2]
    with environment(DOCA_EMULATOR_FAULTS="doca_devinfo_rep_create_list:1=NO_MEMORY"):
        code, severity, what = judged(configured())[-1]
        assert (code, severity) == ("doca-representor", NOTE)
        assert "doca_devinfo_rep_create_list: DOCA_ERROR_NO_MEMORY" in what


def test_an_older_release_is_looked_at_too() -> None:
    old = judged(configured(path=emulator("2.5")))
    assert old[1] == ("doca-device", OK, "0000:03:00.0 (mlx5_0, p0) can copy, 2048 KiB in one task")


def test_what_the_host_channel_comch_needs_is_looked_for() -> None:
    served = "0000:03:00.0 (mlx5_0, p0) can serve Comch: messages of 4080 bytes, names of "
    *_, comch, representor = judged(by_comch(representor="5c:00.0"))
    assert comch[:2] == ("doca-comch", OK)
    assert comch[2].startswith(served)
    assert representor == ("doca-representor", OK, "Comch would serve the host's 0000:5c:00.0")
    code, severity, what = judged(by_comch(representor="5d:00.0"))[-1]
    assert (code, severity) == ("doca-representor", ERROR)
    assert what.startswith("no representor 5d:00.0: there are 0000:5c:00.0")
    with environment(DOCA_EMULATOR_COMCH_MAX="63"):
        assert ("doca-comch", ERROR) in [(code, severity) for code, severity, _ in judged(by_comch())]
    with environment(DOCA_EMULATOR_SIDE="host"):
        code, severity, what = judged(by_comch())[-1]
        assert (code, severity) == ("doca-device", ERROR)
        assert what.startswith("no device to serve: there are ")
    code, severity, what = judged(by_comch(path=emulator("2.5")))[-1]
    assert (code, severity) == ("doca-device", ERROR)
    assert what.startswith("no device to serve: ")
