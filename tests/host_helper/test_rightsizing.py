"""Measured demands: what is measured, by a clock of the test, and how the file is used or refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offpath.bindings.errors import DeviceError, OptionRefused
from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.mig import gpu_model
from offpath.host_helper import Helper, current_lane
from offpath.host_helper.profiling import BLOCKS, WARM_UP, measure, sample_of
from offpath.host_helper.rightsizing import read_demands, right_sized, write_demands

MS = 1_000_000
SAMPLE = sample_of([np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros(5, np.uint8)], 4096)


@pytest.fixture
def gpu() -> Iterator[EmulatedGpu]:
    made = EmulatedGpu("GPU-0", "A100-40GB", slice_bytes=1 << 20)
    yield made
    made.close()


class Timed:
    """A helper whose kernel takes as long as it says, by the clock that `measure` reads."""

    def __init__(self, took_ms: dict[str, int]) -> None:
        self.now_ns = 0
        self.helper = Helper()
        self.opened: list[str] = []
        self.runs = 0

        @self.helper.lane_opened
        def load(lane: Any) -> None:
            self.opened.append(lane.profile)
            self.now_ns += 10_000 * MS

        @self.helper.kernel("k", demand="auto")
        def kernel(matrix: Any, flags: Any) -> Any:
            assert (matrix.tolist(), flags.nbytes) == ([[0, 1, 2], [3, 4, 5]], 5)
            profile = current_lane().profile
            assert self.opened == [profile], "the model is loaded before the first run"
            self.runs += 1
            slow = 50 if self.runs <= WARM_UP else 1
            self.now_ns += slow * took_ms[profile] * MS
            return matrix.sum(axis=0)

    def rate(self, gpu: EmulatedGpu, profile: str, seconds: float = 1.0) -> float:
        table, wanted = self.helper, gpu_model("A100-40GB").profile(profile)
        return measure(table, table.kernels["k"], gpu, wanted, SAMPLE, seconds, clock=lambda: self.now_ns)


def test_the_rate_is_of_runs_after_the_first_few_on_an_instance_of_that_size(gpu: EmulatedGpu) -> None:
    timed = Timed({"1g.5gb": 20, "7g.40gb": 4})
    assert timed.rate(gpu, "1g.5gb") == pytest.approx(50)
    assert timed.rate(gpu, "7g.40gb") == pytest.approx(250)
    assert gpu.instances() == []


def test_one_run_of_each_part_is_measured_however_long_it_takes(gpu: EmulatedGpu) -> None:
    assert Timed({"1g.5gb": 3_600_000}).rate(gpu, "1g.5gb", 0.001 * BLOCKS) == pytest.approx(1 / 3600)


def test_what_the_kernel_left_is_scrubbed(gpu: EmulatedGpu) -> None:
    Timed({"1g.5gb": 1}).rate(gpu, "1g.5gb")
    found = os.pread(gpu._fd, gpu.profile_bytes("1g.5gb"), 0)
    assert not np.any(np.frombuffer(found, np.uint8))


def test_a_kernel_that_raises_is_named_and_its_instance_is_gone(gpu: EmulatedGpu) -> None:
    with pytest.raises(DeviceError, match=r"kernel k raised KeyError: '2g\.10gb'"):
        Timed({}).rate(gpu, "2g.10gb")
    assert gpu.instances() == []


def test_a_gpu_with_leases_is_not_measured(gpu: EmulatedGpu) -> None:
    gpu.create_instance("1g.5gb", 0)
    with pytest.raises(DeviceError, match=r"no room for 7g\.40gb now"):
        Timed({}).rate(gpu, "7g.40gb")
    assert len(gpu.instances()) == 1


@pytest.mark.parametrize("arrays", [[], [np.zeros(1)] * 81, [np.array(["2026"], "M8[s]")], [np.array([None])]])
def test_inputs_that_no_request_has_are_refused(arrays: list[Any]) -> None:
    with pytest.raises(OptionRefused):
        sample_of(arrays, 1)


# -- the file ----------------------------------------------------------------------------------------------------------
def auto() -> Helper:
    helper = Helper()
    helper.kernel("k", demand="auto", memory="1GiB")(len)
    helper.kernel("plain", demand=7)(len)
    return helper


def test_an_automatic_demand_is_that_of_the_file_for_the_gpus_here(tmp_path: Path, gpu: EmulatedGpu) -> None:
    path = str(tmp_path / "demands.json")
    write_demands(path, "k", {"A100-40GB": 28})
    write_demands(path, "k", {"H100-80GB": 14})
    write_demands(path, "other", {"A100-40GB": 57})
    measured = read_demands(path)
    assert measured == {"k": {"A100-40GB": 28, "H100-80GB": 14}, "other": {"A100-40GB": 57}}
    kernels = right_sized(auto().kernels, [gpu], measured)
    assert (kernels["k"].demand, kernels["k"].models, kernels["k"].memory_bytes) == (28, {"A100-40GB": 28}, 1 << 30)
    assert (kernels["plain"].demand, kernels["plain"].models) == (7, {})


def test_without_a_measurement_the_helper_does_not_start(tmp_path: Path, gpu: EmulatedGpu) -> None:
    with pytest.raises(OptionRefused, match="measure it with `offpath kernel profile FILE --kernel k --write DEMANDS`"):
        auto().run("/nowhere", gpus=[gpu])
    path = tmp_path / "demands.json"
    write_demands(str(path), "k", {"H100-80GB": 14})
    with pytest.raises(OptionRefused, match="'k' has demand='auto', and was not measured on A100-40GB"):
        auto().run("/nowhere", gpus=[gpu], demands=str(path))


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"version":2}', b'{"kernels":{"k":{"A100-40GB":0}}}', b'{"kernels":{"k":{"A100-40GB":101}}}',
     b'{"kernels":{"k":{"A100-40GB":1.5}}}', b'{"kernels":{"two words":{}}}', b'{"kernels":{"k":{"":14}}}', b"\xff",
     b'{"surprise":1}', b" " * (1 << 20) + b"{}", b"[" * 100_000],
)  # fmt: skip
def test_a_file_that_is_none_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "demands.json"
    path.write_bytes(content)
    with pytest.raises(OptionRefused, match=r"demands\.json"):
        read_demands(str(path))
    with pytest.raises(OptionRefused):
        write_demands(str(path), "k", {"A100-40GB": 14})
    assert path.read_bytes() == content


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_any_file_is_demands_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "demands.json"
    path.write_bytes(content)
    try:
        found = read_demands(str(path))
    except OptionRefused:
        return
    assert all(1 <= share <= 100 for models in found.values() for share in models.values())


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionRefused, match="No such file or directory"):
        write_demands(str(tmp_path / "nowhere" / "demands.json"), "k", {"A100-40GB": 14})
    write_demands(str(tmp_path / "demands.json"), "k", {"A100-40GB": 14})
    assert stat.S_ISREG((tmp_path / "demands.json").stat().st_mode)
    assert [each.name for each in tmp_path.iterdir()] == ["demands.json"]
