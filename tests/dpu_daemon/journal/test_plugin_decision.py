"""A plug-in's answers are in the journal: replay says the same again without it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from offpath.dpu_daemon.durability.journal import codec
from offpath.dpu_daemon.durability.journal.log import Journal, ReplayDiverged, journal_bytes, new_identity, replay
from offpath.dpu_daemon.durability.journal.ring import Ring
from offpath.sched.gpu.greedy import GreedyFirstFit
from offpath.sched.gpu.oldest_gpu_first import OldestGpuFirst
from offpath.sched.gpu.plugin import Answer, PluginDecision, PluginPolicy
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.commands import Command
from offpath.sched.jobs.settings import BookSettings, TenantSpec
from offpath.sched.jobs.snapshot import snapshot

from ...sched.gpus import a100
from ...sched.jobs.world import World
from ...sizes import SIZE, sized
from ...support.advisors import Hosted
from .writing import BOOT, Bytes, reopened

SEEDS = sized(quick=5, fast=10, slow=40, full=1_000)
LANES = 200


class AdvisedWorld(World):
    """The property tests' world under a plug-in that fails now and then, and is started again; with a journal."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.draws = Random(f"plug-in {seed}")
        self.book = self.setup.book()
        self.book.ledger.decide_by(PluginPolicy("sample"))
        self.storage = Bytes(journal_bytes(4))
        self.journal = Journal(Ring.fresh(self.storage, new_identity(BOOT)))
        self.journal.checkpoint(self.book, 0)
        self.said: Counter[str] = Counter()
        self._choices.append((1.0, self._start))
        self.step(self._start())

    def _start(self) -> events.Event:
        inside = self.draws.choice((GreedyFirstFit, OldestGpuFirst))
        self.book.ledger.decisions.arriving = Hosted(inside, self.draws, self.draws.choice((0.0, 0.01, 0.2)))
        return events.PluginStarted()

    def step(self, event: events.Event) -> tuple[Command, ...]:
        decided = super().step(event)
        self.journal.record(event, decided, self.now_ns)
        if self.journal.is_due():
            self.journal.checkpoint(self.book, self.now_ns)
        for decision in decided:
            if isinstance(decision, PluginDecision):
                self.said[f"{decision.query} {decision.fault.partition(':')[0]}"] += 1
        return decided

    def replay(self) -> None:
        """Without the plug-in."""
        replayed = reopened(self.storage)
        assert snapshot(replayed.book) == snapshot(self.book)
        assert not replayed.unwritten


def test_a_book_whose_plug_in_fails_keeps_every_promise_and_replays_without_it() -> None:
    said: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = AdvisedWorld(seed)
        world.run()
        said += world.said
    wanted = {"restore ", "place ", "plan "}
    wanted |= {f"{asked} {code}" for asked in ("place", "plan") for code in ("overrun", "nonsense")}
    if SIZE != "quick":
        assert wanted <= set(said), said


def crowd(storage: Bytes) -> tuple[Journal, JobBook, events.Event]:
    """One lease with 200 lanes about to open, and as many jobs that wait for one: the event that opens it."""
    settings = BookSettings(lanes=LANES, landing_bytes=0, result_bytes=0)
    book = JobBook((TenantSpec("ada", max_jobs=LANES),), PluginPolicy("sample"), settings)
    journal = Journal(Ring.fresh(storage, new_identity(BOOT)))
    journal.checkpoint(book, 0)
    book.ledger.decisions.arriving = Hosted(GreedyFirstFit, Random(0))

    def send(event: events.Event) -> tuple[Command, ...]:
        decided = book.handle(event, 0)
        journal.record(event, decided, 0)
        return decided

    send(events.PluginStarted())
    send(events.HelperJoined(1, (a100("g1"),), (events.Kernel(1, 14),)))
    send(events.SessionOpened(1, "ada", LANES))
    opened = [
        command
        for job in range(1, LANES + 1)
        for command in send(events.JobSubmitted(job, 1, job, 1, 1, 0, 0, 0, False))
        if isinstance(command, commands.OpenLease)
    ]
    for lane in range(LANES - 1):
        send(events.LaneReady(opened[0].lease, lane, opened[0].generation))
    return journal, book, events.LaneReady(opened[0].lease, LANES - 1, opened[0].generation)


def test_more_answers_in_one_event_than_an_entry_holds_are_all_recalled() -> None:
    storage = Bytes(journal_bytes(4))
    journal, book, last = crowd(storage)
    decided = book.handle(last, 0)
    assert sum(isinstance(command, PluginDecision) for command in decided) == LANES
    assert len(decided) > codec.MOST_DECIDED
    journal.record(last, decided, 0)
    journal.record(events.Tick(), book.handle(events.Tick(), 0), 0)
    assert snapshot(reopened(storage).book) == snapshot(book)


def test_answers_that_a_kill_kept_from_the_journal_were_never_given() -> None:
    """The entry's first part is written, the rest is not: nothing of it was carried out, so the built-in decides what
    is left, and that is what the journal then says."""
    storage = Bytes(journal_bytes(4))
    journal, book, last = crowd(storage)
    decided = book.handle(last, 0)
    kind, data = codec.pack_decided(last, decided[: codec.MOST_DECIDED], 0)
    journal._ring.append(kind, 0, data)
    replayed = reopened(storage)
    rest = replayed.unwritten
    assert [command.fault for command in rest if isinstance(command, PluginDecision)] == ["gone: no plug-in runs"]
    copies = [c for c in (*decided[: codec.MOST_DECIDED], *rest) if isinstance(c, commands.Copy)]
    assert len({copy.lane for copy in copies}) == len(copies) == LANES
    journal.decided(rest, replayed.time_ns)
    again = reopened(storage)
    assert not again.unwritten
    assert snapshot(again.book) == snapshot(replayed.book)


def test_an_answer_changed_in_the_journal_is_noticed() -> None:
    """A lane that was free as well: a legal answer, but not the one that was carried out."""
    storage = Bytes(journal_bytes(4))
    journal, book, last = crowd(storage)
    journal.record(last, book.handle(last, 0), 0)
    ring = Ring.opened(storage)
    entries = list(ring.entries(ring.checkpoints[-1]))
    (place,) = (n for n, entry in enumerate(entries) if b'["place","",[[' in entry.data and entry.kind != codec.DECIDED)
    event, *decided = codec.values(entries[place])
    first = next(command for command in decided if isinstance(command, PluginDecision))
    assert first.decided.placement is not None
    decided[decided.index(first)] = PluginDecision(
        first.query, "", Answer(placement=replace(first.decided.placement, lane=LANES - 7))
    )
    kind, data = codec.pack_decided(event, decided, 0)
    assert len(replay(iter(entries)).unwritten) == 0
    entries[place] = replace(entries[place], kind=kind, data=data)
    with pytest.raises(ReplayDiverged, match=r"contains Copy\(.*the book now decides Copy\("):
        replay(iter(entries))
