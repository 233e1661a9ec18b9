"""Registering kernels, and what the helper calls around them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from mmap import PAGESIZE
from typing import Any

import pytest

from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.host_helper import Helper, LaneContext, current_lane
from offpath.host_helper.demands import Batching, needs
from offpath.host_helper.kernels import Kernel, KernelTable, LaneMemory, call_kernel, enter_lane


@pytest.mark.parametrize("demand", [0, -1, 101, 150, 1_700])
def test_a_demand_is_a_percentage_of_a_gpu(demand: int) -> None:
    with pytest.raises(ValueError, match=rf"kernel 'k': demand {demand} is no percentage of a GPU \(1..100\)"):
        Helper().kernel("k", demand=demand)


def test_a_name_is_used_once() -> None:
    helper = Helper()
    helper.kernel("k")(len)
    with pytest.raises(ValueError, match="'k' is registered already"):
        helper.kernel("k")


def test_tensors_are_of_a_known_library_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="tensors='jax' is none of numpy, torch, cupy, pointer"):
        Helper().kernel("k", tensors="jax")
    monkeypatch.setattr("offpath.host_helper.kernels.find_spec", lambda name: None)
    for name in ("numpy", "torch", "cupy"):
        with pytest.raises(ValueError, match=f"{name} is not installed here"):
            Helper().kernel("k", tensors=name)
    Helper().kernel("k", tensors="pointer")


@pytest.mark.parametrize("name", ["", "two words", "-k", "k" * 65, "ä", "k\n"])
def test_a_name_that_cannot_travel_is_refused_where_it_is_given(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        Helper().kernel(name)


def test_the_decorated_function_stays_itself() -> None:
    table = KernelTable()

    @table.kernel("double", demand=7, tensors="pointer")
    def double(value: int) -> int:
        return 2 * value

    assert double(4) == 8
    assert table.kernels["double"] == Kernel("double", double, 7, None, None, "pointer")


def test_without_a_demand_a_kernel_takes_a_whole_gpu() -> None:
    table = KernelTable()
    table.kernel("k")(len)
    assert table.kernels["k"].demand == 100


def test_batches_are_declared_with_their_kernel_and_are_off_without_max_batch() -> None:
    table = KernelTable()
    table.kernel("plain", max_batch=1)(len)
    table.kernel("batched", max_batch=32, max_queue_delay_us=2_000, preferred_batch_sizes=(16, 8, 8))(len)
    assert table.kernels["plain"].batching is None
    assert table.kernels["batched"].batching == Batching(32, 2_000, (8, 16))


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("max_batch -1", {"max_batch": -1}),
        ("max_batch 4097", {"max_batch": 4_097}),
        ("max_batch 0 is not 2", {"max_queue_delay_us": 5}),
        ("max_batch 1 is not 2", {"max_batch": 1, "preferred_batch_sizes": (1,)}),
        ("max_queue_delay_us 10000001", {"max_batch": 8, "max_queue_delay_us": 10_000_001}),
        (r"preferred_batch_sizes \[4, 9\]", {"max_batch": 8, "preferred_batch_sizes": (9, 4)}),
        (r"preferred_batch_sizes \[0\]", {"max_batch": 8, "preferred_batch_sizes": (0,)}),
        ("up to 8 sizes", {"max_batch": 64, "preferred_batch_sizes": range(1, 10)}),
    ],
)
def test_batches_that_cannot_be_are_refused_where_they_are_declared(said: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"kernel 'k': .*{said}"):
        Helper().kernel("k", **wrong)


def test_a_kernel_that_streams_is_a_generator_and_is_declared_so() -> None:
    def numbers(limit: int) -> Iterator[int]:
        yield from range(limit)

    async def later() -> None:
        pass

    table = KernelTable()
    table.kernel("numbers", streams=True)(numbers)
    assert table.kernels["numbers"].streams
    with pytest.raises(ValueError, match="kernel 'k': streams=True, but the function yields nothing"):
        table.kernel("k", streams=True)(len)
    with pytest.raises(ValueError, match="kernel 'k': a generator needs streams=True"):
        table.kernel("k")(numbers)
    with pytest.raises(ValueError, match="kernel 'k': kernels are not async"):
        table.kernel("k", streams=True)(later)
    with pytest.raises(ValueError, match="kernel 'k': streams and max_batch exclude each other"):
        table.kernel("k", streams=True, max_batch=2)
    assert list(table.kernels) == ["numbers"]


def test_the_daemon_and_requesters_learn_which_kernels_stream() -> None:
    def ones(x: Any) -> Iterator[Any]:
        yield x

    table = KernelTable()
    declared = {"x": ("fp32", [-1])}
    table.kernel("ones", streams=True, inputs=declared, outputs=declared)(ones)
    table.kernel("plain", inputs=declared, outputs=declared)(len)
    assert [(each.name, each.streams) for each in needs(table.kernels.values(), [])] == [("ones", True)]
    signatures = [kernel.signature for kernel in table.kernels.values()]
    assert [each.streams for each in signatures if each is not None] == [True, False]


def kernel(function: Any, pre: Any = None, post: Any = None) -> Kernel:
    return Kernel("k", function, 1, pre, post, "numpy")


def test_pre_and_post_stand_around_the_kernel() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    assert call_kernel(kernel(add), (1, 2)) == 3
    assert call_kernel(kernel(add, pre=lambda a, b: (a * 10, b * 10)), (1, 2)) == 30
    assert call_kernel(kernel(add, pre=lambda a, b: [a, 7]), (1, 2)) == 8
    assert call_kernel(kernel(abs, pre=lambda a, b: a - b), (1, 2)) == 1
    assert call_kernel(kernel(add, post=lambda result: (result, result)), (1, 2)) == (3, 3)
    assert call_kernel(kernel(add, lambda a, b: (b, b), str), (1, 2)) == "4"


def test_a_fault_in_pre_kernel_or_post_is_the_kernels() -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    for broken in (kernel(len, pre=fails), kernel(fails), kernel(abs, post=fails)):
        with pytest.raises(ZeroDivisionError):
            call_kernel(broken, (1,))


def test_outside_a_kernel_there_is_no_lane() -> None:
    code = """if True:
        from offpath.host_helper import current_lane
        try:
            current_lane()
        except LookupError:
            print("none")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "none\n"


def test_inside_a_kernel_the_lane_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    import contextvars

    gpu = EmulatedGpu("GPU-0", "A100-40GB", slice_bytes=1 << 20)
    memory = gpu.open_instance(gpu.create_instance("1g.5gb", 0))
    reserved = memory.reserve(0, 1, 8192, 4096)
    lane = LaneContext("ada", "GPU-0", "1g.5gb", 0, 1, 2, 3, os.getpid(), LaneMemory(reserved))

    def inside() -> LaneContext:
        enter_lane(lane)
        return current_lane()

    assert contextvars.copy_context().run(inside) is lane
    landing, result = -(-8192 // PAGESIZE) * PAGESIZE, -(-4096 // PAGESIZE) * PAGESIZE
    assert (lane.memory.landing_bytes, lane.memory.result_bytes, lane.memory.device) == (landing, result, (1, 0))
    assert (lane.memory.pointer, lane.memory.stream) == (reserved.pointer, 0)
    lane.memory.write(landing - 2, b"over")
    assert (reserved.read(landing - 2, 4), lane.memory.read(landing, 2)) == (b"over", b"er")
    memory.close()
    gpu.close()


def test_a_helper_without_kernels_does_not_run() -> None:
    with pytest.raises(ValueError, match=r"register one with @helper\.kernel"):
        Helper().run("/nowhere")


def test_lane_hooks_are_kept_in_order() -> None:
    helper = Helper()
    hooks = [lambda lane: None, lambda lane: None]
    assert [helper.lane_opened(hook) for hook in hooks] == hooks
    assert helper.on_lane_open == hooks


def test_importing_the_library_imports_nothing_else() -> None:
    code = """if True:
        import sys
        before = set(sys.modules)
        import offpath.host_helper
        new = set(sys.modules) - before
        print(sorted(name for name in new if name.partition(".")[0] not in sys.stdlib_module_names))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "['offpath', 'offpath.host_helper']\n"


def test_every_name_of_the_library_is_there_and_no_other() -> None:
    import offpath.host_helper as library

    for name in library._WHERE:
        assert getattr(library, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'sing'"):
        library.sing  # noqa: B018
