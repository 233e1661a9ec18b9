"""`offpath gpu check` and `offpath bench gpu` on the GPU emulator: every check runs, or says why not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from offpath.bindings.cuda.kernels import PTX as ZERO_CHECK
from offpath.cli.bench.gpu import benchmark
from offpath.cli.bench.gpu.kernels import PARAMETERS, PTX
from offpath.cli.bench.gpu.setting import Setting, find
from offpath.cli.gpu_check import runner
from offpath.cli.gpu_check.call_script import read, replay
from offpath.cli.gpu_check.codes import differences
from offpath.cli.gpu_check.plan import CHECKS, Check

from ..support.command import offpath
from ..support.gpu_machine import Machine
from ..support.processes import until
from ..support.sources import ROOT

pytestmark = pytest.mark.gpu
SETTING = Setting("GPU-0", "a GPU", 1 << 20, True, True)
SUPPORT = ROOT / "tests" / "support"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """As the recorded calls found it."""
    made = Machine(tmp_path / "machine", mig="off", models="H100-80GB", slice_bytes=str(8 << 20))
    yield made
    made.close()


# -- the command ------------------------------------------------------------------------------------------------------
def test_every_check_runs_on_the_emulator_or_says_why_not(machine: Machine) -> None:
    done = offpath("gpu", "check", "--quick", "--json", timeout=120)
    assert done.code == 0, done.err
    found = done.document
    assert (found["is_emulated"], found["quick"], found["gpu"]["problem"]) == (True, True, "")
    assert [each["number"] for each in found["checks"]] == list(CHECKS)
    assert {each["number"]: each["status"] for each in found["checks"]} == {
        **dict.fromkeys(CHECKS, "ok"), 6: "not possible"
    }  # fmt: skip
    for each in found["checks"]:
        assert bool(each["figures"]) is (each["number"] != 6), each
        assert bool(each["why"]) is (each["number"] == 6), each
        assert not each["unmet"], each
        assert f"{each['number']:2}  {each['name']}: {each['status']} (EMULATED)" in done.err
    assert done.err.startswith("EMULATED: no figure is a GPU's.")
    figures = {each["number"]: each["figures"] for each in found["checks"]}
    assert figures[8]["filled, then killed"]["value"] <= 16 << 20
    assert figures[8]["the driver clears what a killed process leaves"]["value"] is False
    assert figures[12]["recorded calls"]["value"] > 200
    assert figures[12]["Xid of the fault"]["value"].isdecimal()


def test_without_a_gpu_every_check_says_why_it_is_not_possible(machine: Machine) -> None:
    machine.set(gpus="0")
    done = offpath("gpu", "check", "--json", "--only", "4,1,4")
    assert done.code == 1
    found = done.document
    assert [each["number"] for each in found["checks"]] == [1, 4]
    assert "CUDA" in found["gpu"]["problem"]
    assert (found["checks"][1]["status"], found["checks"][1]["why"]) == ("not possible", found["gpu"]["problem"])


@pytest.mark.parametrize("only", ["0", "13", "1,x", "1,,2", "-1"])
def test_numbers_that_no_check_has_are_refused(only: str) -> None:
    done = offpath("gpu", "check", f"--only={only}")
    assert done.code != 0
    assert f"--only {only}: use numbers from 1 to 12" in done.err


def test_a_request_allocates_nothing_and_switches_no_context(machine: Machine) -> None:
    done = offpath("bench", "gpu", "--quick", "--json", timeout=120)
    assert done.code == 0, done.err
    found = done.document
    assert found["is_emulated"] is True
    sizes = {"4 KiB": 4096.0, "600 KB": 614_400.0, "19.66 MB": 19_660_800.0}
    calls = {"cuMemcpyHtoDAsync_v2": 1.0, "cuLaunchKernel": 1.0, "cuStreamSynchronize": 3.0}
    assert found["calls_per_request"] == {engine: dict.fromkeys(sizes, calls) for engine in ("loopback", "cuda")}
    copied = found["cpu_copied_bytes_per_request"]
    assert copied["cuda"] == dict.fromkeys(sizes, 0.0), "the worker copies out of the slot"
    assert all(copied["loopback"][size] >= nbytes for size, nbytes in sizes.items())
    assert {bar["value"] for bar in found["bars"]} == {0.0}
    assert "EMULATED" in done.err


def test_on_a_gpu_each_latency_is_over_the_direct_one_of_its_block(machine: Machine) -> None:
    """What runs on a GPU only, on an emulated one: its rows, and not their times."""
    report = benchmark.times(replace(find(is_quick=True), is_emulated=False))
    assert list(report.data["launches"]) == ["0 ms", "1 ms", "4 ms"]
    assert list(report.data["copies"]) == ["600 KB", "19.66 MB", "600 KB, cuda", "19.66 MB, cuda"]
    for row in (report.data["launches"] | report.data["copies"]).values():
        assert row["over"]["blocks"] == 3
        assert min(row["direct_us"], row["request_us"], row["over"]["min"]) > 0
    (bar,) = report.bars
    assert (bar.bound, bar.value) == (1.10, report.data["launches"]["4 ms"]["over"]["median"])


# -- what a check's process does --------------------------------------------------------------------------------------
def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def ended(function: str, monkeypatch: pytest.MonkeyPatch, limit_s: float = 60.0) -> runner.Outcome:
    """How a check of the stand-ins ends."""
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    return runner.run(Check(99, "stand-in", "check_stand_ins", function, limit_s), SETTING, limit_s)


def test_a_check_that_hangs_is_ended_with_all_it_started_and_keeps_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit_s in (2.0, 10.0, 40.0):  # a machine under load may need longer until the first figure
        outcome = ended("hang", monkeypatch, limit_s)
        assert (outcome.status, outcome.why) == (runner.FAILED, f"not finished after {limit_s:.0f} s")
        if outcome.figures:
            break
    child = outcome.figures["child"]["value"]
    until(lambda: not is_running(child))


def test_a_check_that_crashes_keeps_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = ended("crash", monkeypatch)
    assert (outcome.status, outcome.why) == (runner.FAILED, "its process ended with code -6")
    assert outcome.figures == {"before": {"value": 2, "unit": "s"}}
    assert "last words" in outcome.log


def test_a_promise_that_is_not_met_fails_the_check_and_the_others_are_still_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome = ended("fail", monkeypatch)
    assert outcome.status == runner.FAILED
    assert (outcome.unmet, outcome.met) == (["water is dry: it is wet"], ["fire is hot"])


def test_a_check_that_is_not_possible_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = ended("refuse", monkeypatch)
    assert (outcome.status, outcome.why) == (runner.NOT_POSSIBLE, "no MPS here")


def test_a_part_that_crashes_does_not_end_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = ended("stumble", monkeypatch)
    assert (outcome.status, list(outcome.figures)) == (runner.FAILED, ["after"])
    assert outcome.unmet == ["a part: a part: the process ended without a result"]


# -- recorded calls and device code -----------------------------------------------------------------------------------
def test_a_changed_code_and_an_early_end_are_differences(machine: Machine) -> None:
    section = read()[0]
    found = replay(section)
    assert differences(section, found) == []
    name, arguments, code = section.calls[3]
    assert differences(section, [*found[:3], 77, *found[4:]]) == [
        f"3: {name}({', '.join(map(str, arguments))}) is 77, recorded {code}"
    ]
    assert differences(section, found[:5]) == [f"5: {section.calls[5][0]} ended the process"]


def test_the_recorded_calls_cover_what_the_adapters_call() -> None:
    """Codes of every function that offpath calls on a GPU are compared with the emulator's."""
    called = set()
    for path in (ROOT / "bindings" / "offpath" / "bindings" / "cuda").glob("*.py"):
        called |= set(re.findall(r'"(cu[A-Z]\w+)"', path.read_text()))
    recorded = {name.removesuffix("_v2") for section in read() for name, _, _ in section.calls}
    assert {name.removesuffix("_v2") for name in called} - recorded == set()


def test_ptx_and_parameters_agree() -> None:
    kinds = {"u64": "Q", "u32": "I", "f32": "F"}
    found = {}
    for image in (PTX, ZERO_CHECK):
        for name, parameters in re.findall(r"\.entry (\w+)\((.*?)\)\s*\{", image.decode(), re.DOTALL):
            found[name] = "".join(kinds[each] for each in re.findall(r"\.param \.(\w+)", parameters))
    assert found == PARAMETERS
