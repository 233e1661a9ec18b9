"""What a kernel needs: how its author states it, which GPUs it runs on, and what the daemon is told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.errors import OptionRefused
from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.mig import GpuModel, gpu_model, gpu_models, is_named
from offpath.bindings.wire import control, fields
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES
from offpath.host_helper import Helper
from offpath.host_helper.demands import MAX_MEMORY, MAX_MODELS, needs, parse_demand, parse_memory, share_on
from offpath.host_helper.kernels import Kernel

GIB = 1 << 30


class Gpu(EmulatedGpu):
    """A GPU as its driver names it."""

    def __init__(self, reported: str, known: str) -> None:
        super().__init__("GPU-0", known, slice_bytes=4096)
        self.model: GpuModel = replace(gpu_model(known), name=reported)


@pytest.fixture
def a100() -> Iterator[Gpu]:
    gpu = Gpu("NVIDIA-A100-SXM4-40GB", "A100-40GB")
    yield gpu
    gpu.close()


def kernel(**what: Any) -> Kernel:
    helper = Helper()
    helper.kernel("k", **what)(len)
    return helper.kernels["k"]


@pytest.mark.parametrize(
    ("written", "nbytes"),
    [("6GiB", 6 * GIB), ("512 MiB", 512 << 20), ("1.5GiB", 3 << 29), ("1TiB", 1 << 40), ("1048576", 1 << 20),
     ("2000000B", 2_000_000), (1 << 20, 1 << 20), (None, 0), ("1024TiB", MAX_MEMORY)],
)  # fmt: skip
def test_memory_is_a_size_with_a_unit_or_bytes(written: str | int | None, nbytes: int) -> None:
    assert parse_memory(written) == nbytes
    assert kernel(memory=written).memory_bytes == nbytes


@pytest.mark.parametrize(
    "written",
    ["", "GiB", "-1", "0", 0, -5, "6 gib", "6GB", "1e9", "0.1B", "6GiB ", "1025TiB", 1 << 60, True, "٣GiB", 1.5j],
)
def test_a_memory_that_is_no_size_is_refused_where_it_is_written(written: Any) -> None:
    with pytest.raises(ValueError, match="kernel 'k': memory"):
        kernel(memory=written)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (16, "memory '16' is 16 bytes; the least is 1 MiB; write a unit, such as '16GiB'"),
        ("16", "memory '16' is 16 bytes; the least is 1 MiB; write a unit, such as '16GiB'"),
        (1.5, "memory '1.5' is 1 bytes; the least is 1 MiB; write a unit, such as '1.5GiB'"),
        ("80B", "memory '80B' is 80 bytes; the least is 1 MiB"),
        ("1023KiB", "memory '1023KiB' is 1047552 bytes; the least is 1 MiB"),
        ((1 << 20) - 1, "memory '1048575' is 1048575 bytes; the least is 1 MiB; write a unit, such as '1048575GiB'"),
    ],
)
def test_a_memory_that_cannot_be_meant_is_refused_with_what_to_write(written: Any, said: str) -> None:
    with pytest.raises(ValueError, match=rf"^kernel 'k': {re.escape(said)}$"):
        kernel(memory=written)


@given(st.text(max_size=40) | st.integers() | st.floats())
def test_whatever_is_written_as_memory_is_bytes_or_a_value_error(written: Any) -> None:
    try:
        nbytes = parse_memory(written)
    except ValueError:
        return
    assert 1 << 20 <= nbytes <= MAX_MEMORY


def test_the_share_of_a_table_is_its_least() -> None:
    table = {"A100-40GB": 14, "H100-80GB": 10}
    assert parse_demand(table) == (10, table)
    assert parse_demand(14) == (14, {})
    assert kernel(demand=table, memory="6GiB").needs_text() == "14 % of A100-40GB, 10 % of H100-80GB, 6144 MiB"


@pytest.mark.parametrize(
    "demand",
    [{}, {"A100-40GB": 0}, {"A100-40GB": 101}, {"A100-40GB": True}, {"A100-40GB": "14"}, {"": 14}, {"a b": 14},
     {7: 14}, {f"m{n}": 1 for n in range(MAX_MODELS + 1)}, "14", 14.0, None, True],
)  # fmt: skip
def test_a_demand_that_is_none_is_refused_where_it_is_written(demand: Any) -> None:
    with pytest.raises(ValueError, match="kernel 'k': demand"):
        kernel(demand=demand)


def test_a_model_that_does_not_exist_keeps_the_helper_from_starting() -> None:
    helper = Helper()
    helper.kernel("chat", demand={"A100-40GB": 14, "A1000": 50})(len)
    with pytest.raises(
        OptionRefused, match="kernel 'chat': demand names A1000, which is no known GPU model; known: A100"
    ):
        helper.run("/nowhere", emulate=["A100-40GB"], slice_bytes=4096)


@pytest.mark.parametrize(
    ("reported", "known"),
    [
        ("NVIDIA-A100-SXM4-40GB", "A100-40GB"), ("NVIDIA-A100-PCIE-40GB", "A100-40GB"),
        ("NVIDIA-A100-SXM4-80GB", "A100-80GB"), ("NVIDIA-A100-SXM4-80GB-emulated", "A100-80GB"),
        ("NVIDIA-H100-80GB-HBM3", "H100-80GB"), ("NVIDIA-H100-PCIe", "H100-80GB"), ("NVIDIA-H200", "H200-141GB"),
        ("NVIDIA-B200", "B200-180GB"), ("NVIDIA-A30", "A30-24GB"), ("A100-40GB", "A100-40GB"),
    ],
)  # fmt: skip
def test_a_driver_s_name_is_that_of_one_model_of_the_table(reported: str, known: str) -> None:
    nbytes = gpu_model(known).profiles[-1].memory_bytes
    assert [name for name in gpu_models() if is_named(reported, name, nbytes)] == [known]


@pytest.mark.parametrize(
    "reported",
    ["NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "Tesla-V100-SXM2-32GB", "NVIDIA-GH200-480GB", "NVIDIA-A1000", "", "-"],
)
def test_other_gpus_and_instances_are_none_of_the_table(reported: str) -> None:
    assert not [name for name in gpu_models() if is_named(reported, name, 40 * GIB)]


def test_a_name_without_a_size_is_told_by_the_memory() -> None:
    sizes = {
        nbytes: [n for n in gpu_models() if is_named("NVIDIA-A100", n, nbytes)] for nbytes in (39 * GIB, 79 * GIB, GIB)
    }
    assert list(sizes.values()) == [["A100-40GB"], ["A100-80GB"], []]


def test_the_daemon_gets_models_as_the_gpus_are_named(a100: Gpu) -> None:
    both = kernel(demand={"A100-40GB": 14, "H100-80GB": 10}, memory="6GiB")
    (message,) = needs([both, kernel(demand=50)], [a100])
    told = {each.model: each.demand for each in message.models}
    assert told == {"A100-40GB": 14, "H100-80GB": 10, "NVIDIA-A100-SXM4-40GB": 14}
    assert message.memory_bytes == 6 * GIB
    assert (share_on(both, a100), share_on(kernel(demand=50), a100)) == (14, 50)
    assert share_on(kernel(demand={"H100-80GB": 10}), a100) == 0
    assert share_on(kernel(demand={"A100-40GB": 14, "NVIDIA-A100-SXM4-40GB": 20}), a100) == 20


def test_the_longest_message_about_a_kernel_fits_the_host_channel() -> None:
    models = [control.ModelDemand(model=f"{'m' * 61}-{n:02}", demand=100) for n in range(fields.MAX_MODELS)]
    longest = control.KernelNeeds(name="k" * 64, memory_bytes=MAX_MEMORY, models=models,
                                 max_batch=fields.MAX_BATCH, max_queue_delay_us=fields.MAX_QUEUE_DELAY_US,
                                 preferred_batch_sizes=[*range(4_089, 4_097)])  # fmt: skip
    assert len(control.encode(longest)) <= MAX_MESSAGE_BYTES
    assert 2 * MAX_MODELS <= fields.MAX_MODELS, "as written, and as drivers name them"
