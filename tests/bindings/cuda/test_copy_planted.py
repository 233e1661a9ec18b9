"""Bugs of the kinds that the copy engine `cuda` could have: each is planted, and a test of `test_copy` must fail."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable
from mmap import PAGESIZE
from types import SimpleNamespace
from typing import Any

import pytest

from offpath.bindings import forked
from offpath.bindings.cuda import copy
from offpath.bindings.cuda.copy import CudaCopyEngine, WorkerLane
from offpath.bindings.cuda.lane import CudaLane
from offpath.bindings.errors import OffpathError, PeerGone
from offpath.bindings.memory import borrowed
from offpath.bindings.memory.region import Region
from offpath.bindings.wire import regions
from offpath.host_helper.payloads import Payloads

from . import test_copy as tests

Patch = Callable[[object, str, object], None]
Test = Callable[[tests.Rig, Any], None]
BUGS: dict[str, tuple[Callable[[Patch], None], Test, str]] = {}


def planted(test: Test, symptom: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Registers a bug with the test that must fail and with what that must say (a pattern)."""

    def register(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        BUGS[plant.__name__] = (plant, test, symptom)
        return plant

    return register


def of_rig(test: Callable[..., None], *arguments: Any) -> Test:
    return lambda rig, boot: test(rig, *arguments)


def of_gpu(test: Callable[..., None], *arguments: Any) -> Test:
    return lambda rig, boot: test(boot, *arguments)


SENT_ONCE = of_rig(tests.test_a_sessions_memory_is_sent_once_to_each_worker_and_taken_back_when_it_closes)
READ_ONLY = of_rig(tests.test_a_worker_can_only_read_what_it_is_sent)
UNDER_A_COPY = of_gpu(tests.test_a_session_that_ends_under_a_copy_is_unpinned_after_it, "1")
ON_THE_STREAM = of_gpu(tests.test_a_kernel_follows_the_copy_on_the_stream_without_a_wait)


def forged(what: str) -> Test:
    return of_rig(tests.test_a_forged_message_is_a_typed_error_and_copies_nothing, what)


@planted(SENT_ONCE, r"\(0, 0\) == \(1, 1\)")
def leaves_a_closed_sessions_memory_with_the_workers(patch: Patch) -> None:
    patch(CudaCopyEngine, "_dropped", lambda self, source: None)


@planted(SENT_ONCE, r"no_region")
def takes_what_one_worker_was_sent_for_what_all_were(patch: Patch) -> None:
    shared: OrderedDict[int, int] = OrderedDict()
    patch(WorkerLane, "held", property(lambda self: shared, lambda self, value: None))


@planted(SENT_ONCE, r"region_twice")
def sends_the_memory_with_every_copy(patch: Patch) -> None:
    patch(WorkerLane, "held", property(lambda self: OrderedDict(), lambda self, value: None))


@planted(READ_ONLY, r"DID NOT RAISE")
def sends_the_descriptor_that_writes(patch: Patch) -> None:
    opened = SimpleNamespace(**{**vars(os), "open": lambda path, flags: os.open(path, os.O_RDWR)})
    patch(copy, "os", opened)


@planted(READ_ONLY, r"assert 511 == 384")
def lets_every_user_open_the_memory_again(patch: Patch) -> None:
    create = Region.create.__func__  # type: ignore[attr-defined]

    def loose(kind: type[Region], name: str, nbytes: int) -> Region:
        made: Region = create(kind, name, nbytes)
        os.fchmod(made.fd, 0o777)
        return made

    patch(Region, "create", classmethod(loose))


@planted(of_rig(tests.test_a_worker_holds_no_more_than_its_bounds_and_what_it_uses, SimpleNamespace(setattr=setattr)),
         r"too_many_regions|<= 3")  # fmt: skip
def forgets_its_bounds(patch: Patch) -> None:
    offer = CudaCopyEngine._offer

    def without(self: CudaCopyEngine, source: Region, number: int, target: WorkerLane) -> None:
        held, target.held = target.held, OrderedDict()
        offer(self, source, number, target)
        held.update(target.held)
        target.held = held

    patch(CudaCopyEngine, "_offer", without)


@planted(lambda rig, boot: tests.test_a_worker_that_is_gone_fails_its_copies_and_is_reported_as_unreachable(
    rig, lambda fd, bound_s: True), r"assert CopyCompletion.* is None")  # fmt: skip
def takes_what_was_not_sent_for_copied(patch: Patch) -> None:
    order = CudaCopyEngine._order

    def hopeful(self: CudaCopyEngine, *arguments: Any) -> None:
        try:
            order(self, *arguments)
        except PeerGone:
            return

    patch(CudaCopyEngine, "_order", hopeful)


@planted(of_rig(tests.test_results_are_copied_out_of_the_result_half_and_nothing_out_of_the_landing_buffer),
         r"DID NOT RAISE|!= |==")  # fmt: skip
def takes_an_offset_in_the_lane_for_one_in_the_result_half(patch: Patch) -> None:
    patch(copy, "_results_of", lambda lane, offset: (lane.results, max(0, offset - lane.landing_bytes)))


@planted(forged("across the region's end"), r"DID NOT RAISE")
def bounds_a_copy_by_the_lane_alone(patch: Patch) -> None:
    def unbounded(self: Payloads, order: regions.RegionCopy) -> None:
        self._lane.load(order.at, self._regions[order.region].memory.address, 1)

    patch(Payloads, "_copy", unbounded)


@planted(of_rig(tests.test_memory_that_could_end_the_worker_is_refused, "unsealed"), r"DID NOT RAISE")
def maps_memory_that_its_owner_can_truncate(patch: Patch) -> None:
    sealed = SimpleNamespace(**{**vars(borrowed.fcntl), "fcntl": lambda fd, command: borrowed.fcntl.F_SEAL_SHRINK})
    patch(borrowed, "fcntl", sealed)


@planted(of_rig(tests.test_a_launch_needs_the_copy_of_its_own_payload), r"DID NOT RAISE")
def launches_on_the_last_payload(patch: Patch) -> None:
    patch(Payloads, "take", lambda self, nbytes: None)


@planted(of_rig(tests.test_a_copy_and_the_launch_behind_it_are_one_packet_and_a_copy_alone_follows_soon), r"not None")
def keeps_a_copy_without_a_launch_back(patch: Patch) -> None:
    patch(CudaCopyEngine, "flush", lambda self: None)


@planted(UNDER_A_COPY, r"signal 6|status|ended|-6")
def unpins_without_waiting_for_the_copy(patch: Patch) -> None:
    patch(CudaLane, "synchronize", lambda self: None)


@planted(UNDER_A_COPY, rf"{2 * PAGESIZE}, 0")
def never_unpins(patch: Patch) -> None:
    patch(CudaLane, "unpin", lambda self, address: None)


@planted(ON_THE_STREAM, r"cuStreamSynchronize")
def waits_for_every_copy(patch: Patch) -> None:
    load = CudaLane.load

    def waiting(self: CudaLane, *arguments: int) -> None:
        load(self, *arguments)
        self._call("cuStreamSynchronize", self._stream)

    patch(CudaLane, "load", waiting)


@planted(ON_THE_STREAM, r"False")
def copies_on_a_stream_of_its_own(patch: Patch) -> None:
    def apart(self: CudaLane, at: int, address: int, nbytes: int) -> None:
        if not hasattr(self, "_apart"):
            self._apart = self._driver.call("cuStreamCreate", 1)  # type: ignore[attr-defined]
        self._call("cuMemcpyHtoDAsync", self._base + at, address, nbytes, self._apart)  # type: ignore[attr-defined]

    patch(CudaLane, "load", apart)


@planted(of_gpu(tests.test_slots_that_the_driver_does_not_pin_are_copied_unpinned), r"OUT_OF_MEMORY")
def fails_where_nothing_can_be_pinned(patch: Patch) -> None:
    def strict(self: Payloads, memory: Any) -> bool:
        self._lane.pin(memory.address, memory.nbytes)
        return True

    patch(Payloads, "_pin", strict)


@pytest.mark.gpu
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, boot: Any) -> None:
    """In a process of its own, because some leave a driver or a descriptor behind."""
    plant, test, symptom = BUGS[bug]

    def hunt() -> str:
        plant(setattr)  # the process ends with its patches
        try:
            test(tests.Rig(), boot)
        except (AssertionError, OffpathError, OSError, pytest.fail.Exception) as found:
            return f"found: {found}"
        return "not found"

    found = forked.call(hunt, bug, tests.BOUND_S)
    assert found.startswith("found: ")
    assert re.search(symptom, found), found


def test_there_are_as_many_as_were_promised() -> None:
    assert len(BUGS) >= 14
