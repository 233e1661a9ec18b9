"""Bugs of the kinds that adapters of CUDA have: each is planted, and a test of `test_adapter` must fail of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from offpath.bindings import forked
from offpath.bindings.cuda import context, driver, instance, lane, whole
from offpath.bindings.cuda.context import Context
from offpath.bindings.cuda.instance import CudaInstance
from offpath.bindings.cuda.kernels import ZeroCheck
from offpath.bindings.cuda.lane import CudaLane
from offpath.bindings.errors import OffpathError

from . import test_adapter as tests

pytestmark = pytest.mark.gpu
Patch = Callable[[object, str, object], None]
Test = Callable[[Any], None]
BUGS: dict[str, tuple[Callable[[Patch], None], Test, str]] = {}


def planted(test: Test, symptom: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Registers a bug with the test that must fail and with what that must say (a pattern)."""

    def register(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        BUGS[plant.__name__] = (plant, test, symptom)
        return plant

    return register


def peers_below_owner(boot: Any) -> None:
    tests.test_what_a_peer_writes_by_dma_buf_is_there_after_acquire(boot, "0", False)


def a_scrub_that_clears_nothing(boot: Any) -> None:
    tests.test_a_scrub_that_clears_nothing_is_found(boot, True)


@planted(peers_below_owner, r"\(False, False,")
def forgets_the_flush(patch: Patch) -> None:
    patch(CudaLane, "acquire", lambda self, nbytes: None)


@planted(peers_below_owner, r"\(False, False,")
def takes_every_gpu_for_ordered(patch: Patch) -> None:
    patch(Context, "flush_peer_writes", lambda self: None)


@planted(tests.test_a_gpu_whose_peers_cannot_be_seen_is_refused_not_wrong, r"DID NOT RAISE")
def goes_on_where_nothing_can_flush(patch: Patch) -> None:
    flush = Context.flush_peer_writes

    def flush_peer_writes(self: Context) -> None:
        if self.can_flush:
            flush(self)

    patch(Context, "flush_peer_writes", flush_peer_writes)


@planted(tests.test_looking_for_gpus_uses_no_driver_in_this_process, r"libcuda")
def looks_for_gpus_in_the_process_that_forks(patch: Patch) -> None:
    patch(whole.forked, "call", lambda function, what, limit_s: function())


@planted(tests.test_gpus_with_native_atomics_between_them_are_linked, r"\{1: 1, 2: 1, 3: 1\} != \{1: 1, 2: 1\}")
def takes_access_for_nvlink(patch: Patch) -> None:
    patch(whole, "_NATIVE_ATOMICS", 2)


@planted(tests.test_gpus_with_native_atomics_between_them_are_linked, r"\{\} != \{0: 1\}")
def links_gpus_in_one_direction(patch: Patch) -> None:
    peers = whole._peers

    def later(driver: Any, devices: Any) -> list[list[int]]:
        return [[n for n in each if n > at] for at, each in enumerate(peers(driver, devices))]

    patch(whole, "_peers", later)


@planted(tests.test_a_worker_sees_the_one_device_that_it_was_given, r"CUDA shows 2 devices")
def leaves_the_choice_of_the_device_to_cuda(patch: Patch) -> None:
    patch(context, "os", SimpleNamespace(environ={}))  # what is set there does not reach the library


@planted(tests.test_a_kernels_fault_is_reported_at_the_next_wait_and_ends_the_process_s_use, r"DID NOT RAISE")
def answers_before_the_kernel_has_ended(patch: Patch) -> None:
    patch(CudaLane, "synchronize", lambda self: None)


@planted(tests.test_a_kernels_fault_is_reported_at_the_next_wait_and_ends_the_process_s_use, r"ILLEGAL_ADDRESS")
def takes_a_fault_for_an_error_like_others(patch: Patch) -> None:
    patch(driver, "STICKY", frozenset())


@planted(a_scrub_that_clears_nothing, r"DID NOT RAISE")
def believes_the_memset(patch: Patch) -> None:
    patch(ZeroCheck, "is_zero", lambda self, pointer, nbytes: True)


@planted(a_scrub_that_clears_nothing, r"DID NOT RAISE")
def counts_all_but_the_word_with_the_counter(patch: Patch) -> None:
    def count(self: ZeroCheck, pointer: int, nbytes: int) -> int:
        self._driver.call("cuMemsetD8Async", pointer, 0, 8, self._stream)
        return 0 if self._is_read_as_zero(pointer + 8, nbytes - 8) else 1

    patch(ZeroCheck, "_count", count)


@planted(tests.test_a_scrub_finds_what_another_process_left_and_proves_all_of_it, r"16777216")
def scrubs_all_pieces_but_the_first(patch: Patch) -> None:
    pieces = instance._all_memory
    patch(instance, "_all_memory", lambda context: pieces(context)[1:])


@planted(tests.test_a_scrub_finds_what_another_process_left_and_proves_all_of_it, r"33554432")
def stops_at_the_first_piece_that_does_not_fit(patch: Patch) -> None:
    pieces = instance._all_memory
    patch(instance, "_all_memory", lambda context: pieces(context)[:1])


@planted(tests.test_payloads_and_results_pass_through_host_memory_which_a_scrub_clears_too, r"True, False\)")
def scrubs_the_gpu_and_not_the_host(patch: Patch) -> None:
    patch(lane.ctypes, "memset", lambda *_: None)


@planted(tests.test_payloads_and_results_pass_through_host_memory_which_a_scrub_clears_too, r"False, True\)")
def publishes_nothing(patch: Patch) -> None:
    patch(CudaLane, "publish", lambda self, nbytes: None)


@planted(tests.test_payloads_and_results_pass_through_host_memory_which_a_scrub_clears_too, r"\(False, False\)")
def reads_only_the_first_piece(patch: Patch) -> None:
    to_host = CudaLane._to_host

    def first(self: CudaLane, pointer: int, nbytes: int) -> Iterator[tuple[int, int]]:
        return iter([next(to_host(self, pointer, nbytes))])

    patch(CudaLane, "_to_host", first)


@planted(tests.test_a_closed_instance_leaves_no_descriptor, r"'1' == '0'")
def keeps_the_dma_buf_open(patch: Patch) -> None:
    close = CudaLane.close

    def close_without(self: CudaLane) -> None:
        self._fd = -1
        close(self)

    patch(CudaLane, "close", close_without)


@planted(tests.test_a_lane_is_not_reached_beyond_its_end, r"DID NOT RAISE")
def bounds_a_lane_by_its_block(patch: Patch) -> None:
    patch(CudaLane, "_check_range", lambda self, at, nbytes: None)


@planted(tests.test_memory_that_is_not_there_is_a_typed_error_with_both_figures, r"Regex|DID NOT RAISE")
def promises_lanes_that_do_not_fit(patch: Patch) -> None:
    def reserve(self: CudaInstance, number: int, lanes: int, landing: int, result: int) -> CudaLane:
        return CudaLane(self._context, landing, result)

    patch(CudaInstance, "reserve", reserve)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, boot: Any) -> None:
    """In a process of its own, because some leave a driver or a descriptor behind."""
    plant, test, symptom = BUGS[bug]

    def hunt() -> str:
        plant(setattr)  # the process ends with its patches
        try:
            test(boot)
        except (AssertionError, OffpathError, OSError, pytest.fail.Exception) as found:
            return f"found: {found}"
        return "not found"

    found = forked.call(hunt, bug, tests.BOUND_S)
    assert found.startswith("found: ")
    assert re.search(symptom, found), found


def test_there_are_as_many_as_were_promised() -> None:
    assert len(BUGS) >= 16
