"""The journal: what survives a kill, what is refused, and that replay says the same again."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings import faults
from offpath.dpu_daemon.durability.journal import codec
from offpath.dpu_daemon.durability.journal.log import (
    Journal,
    ReplayDiverged,
    journal_bytes,
    new_identity,
    open_journal,
    replay,
)
from offpath.dpu_daemon.durability.journal.ring import (
    FIRST_BYTES,
    RECORD_BYTES,
    Entry,
    JournalCorrupt,
    JournalError,
    JournalForeign,
    MappedFile,
    ReadOnlyFile,
    Ring,
)
from offpath.sched.gpu.greedy import GreedyFirstFit
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.settings import BookSettings, TenantSpec
from offpath.sched.jobs.snapshot import snapshot
from offpath.sched.jobs.states import EndReason, JobState

from ...sched.jobs.book_harness import KERNELS, SMALL, a100
from ...sched.jobs.world import drive
from ...sizes import sized
from .writing import BOOT, Bytes, Writer, any_record, record_at, reopened, seal, written

COPY = bytes((codec.FIRST_COMMAND,))
"""Behind the head of an entry: its first command."""
SEEDS = sized(quick=2, fast=5, slow=25, full=250)
HOSTILE = sized(quick=40, fast=150, slow=1_000, full=10_000)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_replay_of_a_journal_gives_the_same_commands_and_the_same_book(seed: int) -> None:
    writer = written(seed)
    replayed = reopened(writer.storage)
    assert snapshot(replayed.book) == snapshot(writer.book)
    assert replayed.unwritten == []


@pytest.mark.parametrize("seed", range(SEEDS))
def test_replay_is_idempotent(seed: int) -> None:
    """I14: replaying what a replay left gives the same again."""
    writer = written(seed)
    once = snapshot(reopened(writer.storage).book)
    assert snapshot(reopened(writer.storage).book) == once


def test_a_ring_that_has_wrapped_replays_from_a_checkpoint_and_meets_the_later_ones() -> None:
    writer = written(1, mib=1, steps=12_000)
    assert writer.ring.next_number > 1.3 * writer.ring.records
    assert snapshot(reopened(writer.storage).book) == snapshot(writer.book)
    ring = Ring.opened(Bytes.copy_of(writer.storage))
    oldest = replay(ring.entries(ring.oldest_checkpoint()))
    assert oldest.checkpoint_count >= 6
    assert snapshot(oldest.book) == snapshot(writer.book)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_kill_at_any_byte_leaves_a_journal_that_replays_to_what_was_whole(seed: int) -> None:
    """The tail is cut inside the last records; what is before it is all there."""
    writer, random = written(seed), Random(seed)
    for _ in range(20):
        storage = Bytes.copy_of(writer.storage)
        cut = any_record(random, writer)
        at = record_at(cut, writer.ring)
        torn = random.randrange(RECORD_BYTES)
        storage.bytes[at + torn : at + RECORD_BYTES] = bytes(RECORD_BYTES - torn)
        for number in range(cut + 1, writer.ring.next_number):
            start = record_at(number, writer.ring)
            storage.bytes[start : start + RECORD_BYTES] = bytes(RECORD_BYTES)
        replayed = reopened(storage)
        again = reopened(storage)
        assert snapshot(again.book) == snapshot(replayed.book)
        assert again.event_count == replayed.event_count


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_bad_record_in_the_middle_is_refused_with_its_place(seed: int) -> None:
    writer, random = written(seed), Random(seed)
    for _ in range(20):
        storage = Bytes.copy_of(writer.storage)
        bad = min(any_record(random, writer), writer.ring.next_number - 2)
        at = record_at(bad, writer.ring)
        bit = random.randrange(RECORD_BYTES * 8)
        storage.bytes[at + bit // 8] ^= 1 << bit % 8
        before = bytes(storage.bytes)
        with pytest.raises(JournalCorrupt) as refused:
            reopened(storage)
        assert f"record {bad} (byte {at})" in str(refused.value)
        assert bytes(storage.bytes) == before, "an operator may want to look at it as it was"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_replay_fails_when_the_time_of_one_event_was_changed(seed: int) -> None:
    """Any event: what it decides may not depend on its time, but the sum of the times does."""
    writer, random = written(seed), Random(seed)
    ring = Ring.opened(Bytes.copy_of(writer.storage))
    entries = list(ring.entries(ring.checkpoints[0]))
    last = max(n for n, entry in enumerate(entries) if entry.kind > codec.DECIDED)
    entry = random.choice([e for e in entries[: last + 1] if e.kind != codec.KIND_CHECKPOINT])
    storage = Bytes.copy_of(writer.storage)
    at = record_at(entry.number, writer.ring)
    struct.pack_into("<Q", storage.bytes, at + 16, entry.time_ns + 1)
    seal(storage, at)
    ring = Ring.opened(storage)
    with pytest.raises(JournalCorrupt):
        replay(ring.entries(ring.checkpoints[0]))


def test_a_journal_of_another_boot_or_another_build_is_started_anew() -> None:
    writer = written(3)
    before = writer.ring.identity
    ring, replayed, why = open_journal(Bytes.copy_of(writer.storage), "c" * 36)
    assert (replayed, "boot" in why) == (None, True)
    assert ring.identity.lineage != before.lineage
    storage = Bytes.copy_of(writer.storage)
    place = storage.bytes.find(before.schema.encode())
    while place >= 0:
        storage.bytes[place : place + 16] = b"0" * 16
        place = storage.bytes.find(before.schema.encode())
    assert open_journal(storage, BOOT)[1] is None


def test_a_retired_journal_is_not_gone_on_with() -> None:
    writer = written(3)
    writer.journal.retire()
    assert open_journal(writer.storage, BOOT)[1:] == (None, "none was left")


def test_hostile_bytes_give_typed_errors_only() -> None:
    writer, random = written(7), Random(7)
    ring = writer.ring
    for _ in range(HOSTILE):
        storage = Bytes.copy_of(writer.storage)
        number = any_record(random, writer)
        at = record_at(number, ring)
        begin = random.randrange(4, RECORD_BYTES)
        storage.bytes[at + begin : at + RECORD_BYTES] = random.randbytes(RECORD_BYTES - begin)
        seal(storage, at)
        try:
            reopened(storage)
        except JournalError:
            continue


def test_a_file_is_locked_preallocated_and_ours_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    storage = MappedFile(str(path), journal_bytes(1))
    assert path.stat().st_blocks * 512 >= journal_bytes(1)
    with pytest.raises(JournalError, match="another daemon"):
        MappedFile(str(path), journal_bytes(1))
    Journal(Ring.fresh(storage, new_identity(BOOT))).close()
    path.chmod(0o644)
    with pytest.raises(JournalError, match="600"):
        MappedFile(str(path), journal_bytes(1))


def test_a_file_of_another_size_or_no_journal_is_foreign(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"x" * 100)
    with pytest.raises(JournalForeign):
        ReadOnlyFile(str(path))
    path.write_bytes(os.urandom(journal_bytes(1)))
    with pytest.raises(JournalForeign):
        Ring.opened(ReadOnlyFile(str(path)))


def test_an_entry_larger_than_half_the_journal_is_refused_before_it_overwrites_the_checkpoint() -> None:
    writer = written(3, mib=1)
    with pytest.raises(JournalError, match="journal_mib"):
        writer.ring.append(codec.KIND_CHECKPOINT, 0, bytes(800_000))


def test_a_write_that_fails_leaves_what_was_written_before_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = written(3)
    entries = writer.journal.entries
    monkeypatch.setattr(faults, "armed", dict(faults.armed))
    faults.arm("journal.append=raise@1")
    try:
        with pytest.raises(OSError, match=r"journal\.append"):
            writer.handle(drive(3).log[-1][0], 1)
    finally:
        faults.arm("")
    assert writer.journal.entries == entries
    reopened(writer.storage)


def test_replay_diverges_when_a_decision_was_changed() -> None:
    writer = written(5)
    ring = Ring.opened(Bytes.copy_of(writer.storage))
    entry = next(e for e in ring.entries(ring.checkpoints[0]) if e.data[3:4] == COPY and e.kind > codec.DECIDED)
    storage = Bytes.copy_of(writer.storage)
    at = record_at(entry.number, writer.ring)
    storage.bytes[at + 24 + 6] ^= 1  # behind the entry's head and the command's: the command's job
    seal(storage, at)
    with pytest.raises(ReplayDiverged, match=f"record {entry.number} contains"):
        reopened(storage)


def test_more_decisions_than_one_entry_holds_are_all_there_or_made_again() -> None:
    """600 jobs expire at one tick: 600 answers in three entries, of which a kill may leave any number."""
    jobs = 600
    book = JobBook((TenantSpec("ada", max_jobs=jobs),), GreedyFirstFit(), BookSettings(), ())
    writer = Writer(Bytes(journal_bytes(16)), book)
    writer.handle(events.SessionOpened(1, "ada", jobs), 1)
    writer.handle(events.HelperJoined(1, (a100(),), KERNELS), 1)
    for job in range(1, jobs + 1):
        writer.handle(events.JobSubmitted(job, 1, job, SMALL, 0, 0, 1_000, 64, False), 2)
    writer.handle(events.Tick(), 1_000)
    ring = Ring.opened(Bytes.copy_of(writer.storage))
    last = list(ring.entries(ring.checkpoints[-1]))[-3:]
    assert [len(codec.split(entry).decided) for entry in last] == [255, 255, 90]
    assert [entry.kind for entry in last[1:]] == [codec.DECIDED] * 2
    assert reopened(writer.storage).unwritten == []
    for first_lost, missing in ((2, 90), (1, 345)):
        storage = Bytes.copy_of(writer.storage)
        for number in range(last[first_lost].number, writer.ring.next_number):
            at = record_at(number, writer.ring)
            storage.bytes[at : at + RECORD_BYTES] = bytes(RECORD_BYTES)
        replayed = reopened(storage)
        assert snapshot(replayed.book) == snapshot(writer.book)
        assert len(replayed.unwritten) == missing
    storage = Bytes.copy_of(writer.storage)
    at = record_at(last[1].number, writer.ring)
    struct.pack_into("<Q", storage.bytes, at + 16, 1_001)
    seal(storage, at)
    with pytest.raises(ReplayDiverged, match="another time"):
        reopened(storage)


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x02..\x40\x01\x00x", b"\x01..\x40\xff\xffx", b"\x00..x"])
def test_an_entry_that_is_not_made_of_commands_is_refused(data: bytes) -> None:
    with pytest.raises(JournalCorrupt, match="record 7 has malformed commands"):
        codec.split(Entry(7, codec.DECIDED, 0, data))


QWORD = st.integers(0, 2**64 - 1)
DWORD = st.integers(0, 2**32 - 1)
WORD = st.integers(0, 2**16 - 1)
BYTE = st.integers(0, 2**8 - 1)
REASON = st.sampled_from(EndReason)
STATE = st.sampled_from(JobState)
STEPS = st.one_of(
    st.tuples(
        st.builds(
            events.JobSubmitted, QWORD, QWORD, QWORD, DWORD, WORD, BYTE, QWORD, QWORD, st.booleans(), QWORD
        ),
        st.builds(commands.Copy, QWORD, DWORD, QWORD, DWORD),
    ),
    st.tuples(
        st.builds(events.CopyDone, QWORD, DWORD, st.booleans()),
        st.builds(commands.Launch, QWORD, DWORD, QWORD, DWORD, QWORD, DWORD, WORD),
    ),
    st.tuples(
        st.builds(events.ResultArrived, QWORD, QWORD, REASON, QWORD, QWORD),
        st.builds(
            commands.Answer, QWORD, QWORD, STATE, REASON, DWORD, QWORD, QWORD, st.tuples(*[QWORD] * 6)
        ),
    ),
)  # fmt: skip


@given(STEPS, QWORD)
def test_the_entries_of_a_requests_way_fit_one_record_and_are_laid_out_as_any_other(
    step: tuple[events.Event, commands.Command], times: int
) -> None:
    event, command = step
    kind, data = codec.pack_decided(event, (command,), times)
    assert len(data) <= FIRST_BYTES
    assert list(codec.values(Entry(7, kind, 0, data))) == [event, command]
    parts = codec.split(Entry(7, kind, 0, data))
    assert parts.event == codec.pack(event)
    assert parts.decided == [codec.pack(command)]
    assert parts.same_times(times)
    assert not parts.same_times(times + 1)
