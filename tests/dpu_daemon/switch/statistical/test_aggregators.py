"""The statistical switch, its senders and its parameter servers: every order of events, and many long streams."""

from __future__ import annotations

import inspect
import sys
import types
from dataclasses import replace
from types import ModuleType

import pytest

from offpath.bindings.ina.packets import Flag, Packet, PacketKind, aggregator_hash
from offpath.dpu_daemon.switch.statistical.aggregators import Aggregators, State

from ....sizes import SIZE, sized
from .network import MS, STALE_NS, Modules, explore, gradient, right_sum, stream

SEEDS = sized(quick=60, fast=60, slow=150, full=20_000)


def data(job: int, rank: int, psn: int = 0, workers: int = 2, flags: int = 0, hashed: int = 0) -> Packet:
    return Packet(PacketKind.DATA, job, psn, workers, 1 << rank, flags, hashed, gradient(job, rank, psn))


def result(job: int, psn: int = 0, workers: int = 2) -> Packet:
    everyone = (1 << workers) - 1
    return Packet(PacketKind.RESULT, job, psn, workers, everyone, 0, 0, right_sum(job, workers, psn))


# -- one packet at a time ---------------------------------------------------------------------------------------------
def test_the_last_worker_s_packet_sends_the_sum_and_the_result_frees_the_aggregator() -> None:
    switch = Aggregators(4, STALE_NS)
    assert switch.data(data(1, 0), 0) == []
    assert switch.data(data(1, 1), 0) == [replace(data(1, 0), bitmap=0b11, payload=right_sum(1, 2, 0))]
    assert switch.taken[0].state is State.SENT
    switch.result(result(1))
    assert switch.taken == {}
    assert (switch.counters[1].aggregated, switch.counters[1].fallback) == (2, 0)


def test_the_aggregator_is_the_hash_modulo_their_number() -> None:
    hashes = [aggregator_hash(job, psn) for job in (1, 2, 1 << 63) for psn in range(200)]
    switch = Aggregators(7, STALE_NS)
    for number, hashed in enumerate(hashes):
        free = hashed % 7 not in switch.taken
        sent = switch.data(data(1, 0, psn=number, hashed=hashed), 0)
        assert (sent == []) is free
        assert switch.taken[hashed % 7].hash % 7 == hashed % 7
    assert max(hashes.count(each) for each in hashes) == 1
    spread = [sum(each % 7 == index for each in hashes) for index in range(7)]
    assert min(spread) > 50  # 600 / 7 is 86


def test_a_packet_that_collides_goes_on_marked_and_changes_nothing() -> None:
    switch = Aggregators(1, STALE_NS)
    switch.data(data(1, 0), 0)
    assert switch.data(data(2, 0), 1) == [data(2, 0, flags=Flag.COLLIDED)]
    assert switch.taken[0].job == 1
    assert switch.counters[2].collisions == 1


def test_a_duplicate_is_summed_once() -> None:
    switch = Aggregators(1, STALE_NS)
    for rank in (0, 0, 0):
        assert switch.data(data(1, rank), 0) == []
    (total,) = switch.data(data(1, 1), 0)
    assert total.payload == right_sum(1, 2, 0)


def test_a_retransmission_is_summed_and_flushes() -> None:
    switch = Aggregators(1, STALE_NS)
    switch.data(data(1, 0, workers=3), 0)
    (partial,) = switch.data(data(1, 1, workers=3, flags=Flag.RETRANSMITTED), 0)
    assert (partial.bitmap, partial.flags, switch.taken) == (0b011, 0, {})


def test_a_retransmission_takes_no_aggregator() -> None:
    switch = Aggregators(1, STALE_NS)
    again = data(1, 0, flags=Flag.RETRANSMITTED)
    assert switch.data(again, 0) == [again]
    assert switch.taken == {}


def test_the_flush_of_another_psn_or_job_does_nothing() -> None:
    switch = Aggregators(1, STALE_NS)
    switch.data(data(1, 0), 0)
    for job, psn in ((1, 1), (2, 0)):
        assert switch.flush(Packet(PacketKind.FLUSH, job, psn, 2)) == []
        switch.result(result(job, psn))
    assert switch.flush(Packet(PacketKind.FLUSH, 1, 0, 2)) == [data(1, 0)]
    assert switch.taken == {}


def test_a_stale_aggregator_is_taken_over_and_what_it_held_goes_to_its_own_ps() -> None:
    switch = Aggregators(1, 50 * MS)
    switch.data(data(1, 0), 0)
    assert switch.data(data(2, 0), 49 * MS) == [data(2, 0, flags=Flag.COLLIDED)]
    assert switch.data(data(2, 0), 50 * MS) == [data(1, 0)]
    assert switch.taken[0].job == 2


def test_a_flood_of_one_job_holds_no_aggregator_longer_than_any_other_job_s_packet() -> None:
    """It takes what is free, first come first served; nothing is taken from another job, and all of it goes stale."""
    switch = Aggregators(8, 50 * MS)
    switch.data(data(1, 0, hashed=3), 0)
    for psn in range(1000):
        switch.data(data(3, 0, psn=psn, hashed=psn), 1)
    assert len(switch.taken) == 8
    assert switch.taken[3].job == 1
    (total,) = switch.data(data(1, 1, hashed=3), 2)
    assert total.payload == right_sum(1, 2, 0)
    assert switch.data(data(2, 0, hashed=5), 1 + 50 * MS)[0].job == 3
    assert switch.taken[5].job == 2


@pytest.mark.parametrize("other", [replace(data(1, 1), workers=3), replace(data(1, 1), payload=bytes(12))])
def test_a_packet_of_another_form_than_its_psn_s_is_dropped_and_counted(other: Packet) -> None:
    switch = Aggregators(1, STALE_NS)
    switch.data(data(1, 0), 0)
    assert switch.data(other, 0) == []
    assert switch.counters[1].mismatched == 1
    assert switch.data(data(1, 1), 0)[0].payload == right_sum(1, 2, 0)


def test_what_may_not_be_aggregated_passes_as_it_is() -> None:
    switch = Aggregators(1, STALE_NS)
    plain = data(1, 0, flags=Flag.UNAGGREGATED)
    assert switch.data(plain, 0) == [plain]
    assert switch.taken == {}


def test_a_job_that_left_leaves_nothing() -> None:
    switch = Aggregators(8, STALE_NS)
    for psn in range(4):
        switch.data(data(1, 0, psn=psn, hashed=psn), 0)
        switch.data(data(2, 0, psn=psn, hashed=psn + 4), 0)
    switch.forget(1)
    assert {each.job for each in switch.taken.values()} == {2}
    assert list(switch.counters) == [2]


# -- every order ------------------------------------------------------------------------------------------------------
ORDERS = [
    ({1: 2, 2: 2}, {}),
    ({1: 2}, {"again": 1, "lose": 1}),
    ({1: 2}, {"double": 1, "stale": 1}),
    ({1: 2}, {"double": 1, "flush": 1}),
    ({1: 3}, {"again": 1}),
    ({1: 3}, {"double": 1}),
    ({1: 2, 2: 1}, {"again": 1}),
]
MORE_ORDERS = [
    ({1: 2, 2: 2}, {"again": 1}),
    ({1: 2, 2: 2}, {"flush": 1, "double": 1}),
    ({1: 3}, {"again": 2, "lose": 1}),
    ({1: 2}, {"again": 2, "lose": 1, "stale": 1}),
]


@pytest.mark.parametrize(("workers", "budgets"), ORDERS + MORE_ORDERS * (SIZE == "full"), ids=str)
def test_in_every_order_the_sums_are_right_and_the_aggregator_is_free_in_the_end(
    workers: dict[int, int], budgets: dict[str, int]
) -> None:
    assert explore(Modules(), workers, **budgets) > 20


# -- streams ----------------------------------------------------------------------------------------------------------
def test_streams_of_several_jobs_sum_right_whatever_is_lost_doubled_and_reordered() -> None:
    runs = [stream(seed) for seed in range(SEEDS)]
    counters = [each for run in runs for each in run.switch.counters.values()]
    for what in ("aggregated", "fallback", "collisions", "retransmitted", "duplicates", "flushes", "unaggregated"):
        assert sum(getattr(each, what) for each in counters) > 0, f"no stream had any {what}"
    servers = [server.counters for run in runs for server in run.servers.values()]
    for what in ("summed", "duplicates", "overlapping", "outside", "repeated", "flushes"):
        assert sum(getattr(each, what) for each in servers) > 0, f"no PS had any {what}"


# -- planted bugs -----------------------------------------------------------------------------------------------------
BUGS = [
    # module, the line, what it becomes
    ("aggregators", "if packet.bitmap & found.bitmap:", "if False:"),
    ("aggregators", "if (found.job, found.psn) == (packet.job, packet.psn):", "if found.psn == packet.psn:"),
    ("aggregators", "        if packet.flags & Flag.RETRANSMITTED:\n            return self._flushed(index)\n", ""),
    ("aggregators", "if packet.flags & Flag.RETRANSMITTED or packet.workers == 1:", "if packet.workers == 1:"),
    ("aggregators", "found.bitmap == (1 << found.workers) - 1:", "found.bitmap.bit_count() >= 2:"),
    ("aggregators", "        found = self.taken.pop(index)\n        self._counters(found.job).flushes",
     "        found = self.taken[index]\n        self._counters(found.job).flushes"),
    ("aggregators", "            found = self.taken.pop(index)\n", "            found = self.taken[index]\n"),
    ("aggregators", "return [*self._flushed(index), *self._first(packet, index, now_ns)]",
     "return self._first(packet, index, now_ns)"),
    ("aggregators", "found.bitmap |= packet.bitmap", "pass"),
    ("aggregators", ').copy(), now_ns,', '), now_ns,'),
    ("aggregators", "if is_first and summed > 1:", "if summed > 1:"),
    ("server", "        elif common:\n            self.counters.overlapping += 1\n", ""),
    ("server", "values if common else found.total + values", "found.total + values"),
    ("server", "            return [self._result(psn, found, packet.bitmap)]\n", "            return []\n"),
    ("server", "min(self._highest) - self._ring + 1)", "max(self._highest) - self._ring + 1)"),
    ("sender", "and self._next_psn < self._base + self._ring:", ":"),
    ("sender", "return self._packet(psn, sent, Flag.RETRANSMITTED)", "return self._packet(psn, sent, 0)"),
]  # fmt: skip


def planted(module: ModuleType, line: str, becomes: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A copy of the module with the bug in it."""
    source = inspect.getsource(module)
    assert source.count(line) == 1, f"{module.__name__} has {line!r} not once: plant it anew"
    copy = types.ModuleType(f"planted_{module.__name__.rpartition('.')[2]}")
    copy.__dict__["__file__"] = module.__file__
    monkeypatch.setitem(sys.modules, copy.__name__, copy)  # dataclasses and pickle look a class's module up
    exec(compile(source.replace(line, becomes), copy.__name__, "exec"), copy.__dict__)
    return copy


@pytest.mark.parametrize(("where", "line", "becomes"), BUGS, ids=[f"{bug[0]}: {bug[1].strip()}" for bug in BUGS])
def test_a_planted_bug_is_found(where: str, line: str, becomes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = Modules()
    spoiled = replace(modules, **{where: planted(getattr(modules, where), line, becomes, monkeypatch)})
    with pytest.raises((AssertionError, ValueError, KeyError)):
        search(spoiled)


def search(modules: Modules) -> None:
    for seed in range(100):
        stream(seed, modules)
    for workers, budgets in ORDERS:
        explore(modules, workers, **budgets)
