"""A book restored from its snapshot decides on as the book it was taken from; a spoilt snapshot is refused."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import orjson
import pytest

from offpath.sched.errors import PlainError
from offpath.sched.jobs import events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.commands import Answer
from offpath.sched.jobs.settings import MS, PinnedLease, TenantSpec
from offpath.sched.jobs.snapshot import restore, schema, snapshot
from offpath.sched.jobs.states import EndReason
from offpath.sched.plain import from_plain, own_hints

from ...sizes import sized
from ..gpus import a100
from .book_harness import ADA, HALF, KERNELS, SETTINGS, SMALL, BookHarness
from .world import World, drive

SEEDS = sized(quick=12, fast=15, slow=60, full=600)


def through_json(book: JobBook) -> JobBook:
    """As a journal keeps it."""
    return restore(orjson.loads(orjson.dumps(snapshot(book))))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_book_restored_at_any_moment_gives_the_same_commands_from_there_on(seed: int) -> None:
    world, random = drive(seed), Random(seed)
    book = world.setup.book()
    due: tuple[object, ...] = ()
    restored = 0
    for number, (event, now_ns, commands) in enumerate(world.log):
        if number not in world.implied and random.random() < 0.1:
            before = snapshot(book)
            book = through_json(book)
            assert snapshot(book) == before
            restored += 1
        if number in world.implied:
            due = commands
            continue
        assert book.handle(event, now_ns) == due + commands
        due = ()
    assert restored
    assert snapshot(book) == snapshot(world.book)


def with_many_kinds(jobs: int, *, kernel: int = SMALL, room: int = 0) -> BookHarness:
    """``jobs`` jobs of priority 0 wait, then one of each of the priorities 1 to 69: more kinds than a forecast reads.
    Kernel SMALL takes 10 ms; how long others take is not known. The tenant may submit ``room`` more."""
    settings = replace(SETTINGS, max_jobs=9_999)
    ada = TenantSpec("ada", max_share=14, max_jobs=jobs + 69 + room)
    harness = BookHarness((ada,), settings, (PinnedLease("ada", 0, "1g.5gb", 0),))
    harness.warm(1, 1)
    harness.run(2, 1)
    harness.result(12, 1, 1)
    for job in range(2, jobs + 2):
        harness.submit(12, job, kernel=kernel, share=14)
    for priority in range(1, 70):
        harness.submit(12, jobs + 1 + priority, priority=priority)
    return harness


def answered_alike(harness: BookHarness, event: events.Event) -> EndReason:
    """The reason of the answer that the book gives, and one restored from its snapshot too."""
    again = through_json(harness.book)
    (live,) = harness.book.handle(event, 12 * MS)
    assert isinstance(live, Answer)
    assert again.handle(event, 12 * MS) == (live,)
    return live.reason


def test_of_more_kinds_than_a_forecast_reads_it_reads_the_same_ones_after_a_restore() -> None:
    """Which are read depends on the order in which they came, not on the one in which they are queued."""
    late = events.JobSubmitted(9_000, ADA, 9_000, SMALL, 0, 0, 1_012 * MS, 0, False)
    assert answered_alike(with_many_kinds(600, room=1), late) is EndReason.DEADLINE_UNREACHABLE
    full = events.JobSubmitted(9_000, ADA, 9_000, SMALL, 0, 0, 0, 0, False)
    assert answered_alike(with_many_kinds(600, kernel=HALF), full) is EndReason.TENANT_QUEUE_FULL


@pytest.mark.parametrize(
    "change",
    [
        events.KernelsReloaded(2, KERNELS[1:], 1),
        events.KernelsReloaded(1, (events.Kernel(SMALL, 28, models=((a100().model, 28),)), *KERNELS[1:]), 1),
    ],
    ids=["only one helper has it", "it needs more"],
)
def test_jobs_that_a_reload_moves_are_counted_in_the_same_order_after_a_restore(change: events.KernelsReloaded) -> None:
    """A restored queue holds the same jobs in the same order of turns, but not in the same order in memory."""
    harness = BookHarness((TenantSpec("ada", max_share=28),))
    if change.helper == 2:
        harness.send(0, events.HelperJoined(2, (a100("other/gpu"),), KERNELS, "process 2", "other"))
    for job, priority in enumerate((0, 0, 0, 0, 1, 2)):
        harness.submit(1, job + 1, priority=priority)
    again = through_json(harness.book)
    moved = snapshot(harness.book)
    for book in (harness.book, again):
        book.handle(change, 2 * MS)
    assert snapshot(again) == snapshot(harness.book) != moved


def test_a_snapshot_whose_queues_are_not_what_its_tenant_counts_is_refused() -> None:
    data = snapshot(with_many_kinds(3).book)
    ((_, queues, *_),) = data["tenants"]
    queues[0].pop()
    with pytest.raises(PlainError, match="do not match"):
        restore(data)


def full_snapshot() -> dict[str, Any]:
    """Of a book in the middle of everything."""
    world = World(3)
    world.step(world._join_now())
    while not (world.book.ledger.leaving and world.book.ledger.backlogged and world.book.ledger.timers.entries):
        world.run_some(1)
    taken: dict[str, Any] = orjson.loads(orjson.dumps(snapshot(world.book)))
    return taken


def spoilt(data: Any, random: Random) -> None:
    """Change one thing somewhere inside, whatever it is."""
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        key = random.choice(keys)
        if isinstance(data[key], (dict, list)) and data[key] and random.random() < 0.9:
            data = data[key]
            continue
        data[key] = random.choice((None, "", "x", -1, 2**70, 0.5, [], {}, [1], [[1, 2, 3]], True))
        return


def test_a_spoilt_snapshot_is_refused_by_a_typed_error_or_is_a_book_of_the_right_types() -> None:
    whole, random = full_snapshot(), Random(5)
    refused = 0
    for _ in range(SEEDS * 20):
        data = copy.deepcopy(whole)
        spoilt(data, random)
        try:
            restore(data)
        except PlainError:
            refused += 1
    assert refused > SEEDS * 10


@pytest.mark.parametrize("missing", ["policy", "jobs", "tenants", "timers", "ledger", "leasing"])
def test_a_snapshot_without_a_part_is_refused(missing: str) -> None:
    data = full_snapshot()
    del data[missing]
    with pytest.raises(PlainError, match="not a snapshot"):
        restore(data)


def test_a_policy_that_this_build_lacks_is_refused() -> None:
    data = full_snapshot()
    data["policy"][0] = "of-a-plug-in"
    with pytest.raises(PlainError):
        restore(data)


def test_the_schema_is_one_value_per_build() -> None:
    assert schema() == schema()
    assert len(schema()) == 16


def test_a_class_without_its_sources_hints_has_no_plain_form() -> None:
    """mypyc erases hints; read by those, a journal of another build would be misread without a word."""

    @dataclass
    class Erased:
        numbers: tuple[int, ...]

    assert from_plain(Erased, [[1, 2]]) == Erased((1, 2))
    Erased.__annotations__ = {"numbers": tuple}
    own_hints.cache_clear()
    with pytest.raises(TypeError, match="Erased are not those of its source"):
        own_hints(Erased)
