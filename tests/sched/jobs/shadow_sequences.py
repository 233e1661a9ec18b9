"""Where the requests of a sequence may run, and which of them must end, from the same facts; `shadow` asks it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offpath.sched.jobs import events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.commands import Copy, EndSequence
from offpath.sched.jobs.states import EndReason, JobState

from .shadow_records import ShadowJob, ShadowLease, promise

if TYPE_CHECKING:
    from .shadow import Shadow

Place = tuple[int, int]
"""A lease and one of its lanes."""


@dataclass(slots=True, eq=False)
class ShadowSequence:
    """``line``: its jobs that are not answered, or still on a lane; the first may be on one. ``place``: the lane that
    it is bound to; ``has_state``: a launch of it was ordered there. ``ends``: its state goes when the first has left.
    """

    number: int
    key: tuple[int, int, int]
    tenant: str
    line: list[ShadowJob] = field(default_factory=list)
    state: int = 0
    """The job that started it last, and so the number of its state."""
    place: Place | None = None
    has_state: bool = False
    is_over: bool = False
    ends: bool = False
    idle_ns: int = 0
    share: int = 0
    """R of its requests where it is bound."""


class ShadowSequences:
    """All sequences that have not ended, by session, kernel and the client's id."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[int, int, int], ShadowSequence] = {}
        self.to_drop: dict[int, Place] = {}
        """States that a worker is to drop: number of the sequence, and where."""

    # -- facts ----------------------------------------------------------------------------------------------------
    def refusal(self, shadow: Shadow, job: ShadowJob) -> EndReason:
        """Why the request has no place in a sequence, or NONE."""
        event = job.follows
        if event is None:
            return EndReason.NONE
        known = self.by_key.get((job.event.session, job.event.kernel, event.sequence_id))
        if known is not None and (event.is_start or not known.is_over):
            return EndReason.NONE
        if not event.is_start:
            return EndReason.SEQUENCE_UNKNOWN
        mine = sum(each.tenant == job.tenant for each in self.by_key.values())
        most = shadow.tenants[job.tenant].max_sequences
        is_full = mine >= most or len(self.by_key) >= shadow.settings.max_sequences
        return EndReason.TOO_MANY_SEQUENCES if known is None and is_full else EndReason.NONE

    def accepted(self, job: ShadowJob) -> None:
        """The request is the last one of its sequence."""
        event = job.follows
        assert event is not None
        key = job.event.session, job.event.kernel, event.sequence_id
        sequence = self.by_key.get(key)
        if sequence is None:
            sequence = self.by_key[key] = ShadowSequence(job.event.job, key, job.tenant)
        sequence.line.append(job)
        sequence.is_over = event.is_end
        job.sequence = sequence
        self._starts_anew(sequence)

    def refused(self, shadow: Shadow, job: ShadowJob, reason: EndReason) -> None:
        """Its sequence ends, if the request was to start it anew or to end it."""
        event = job.follows
        if event is None or not (event.is_start or event.is_end):
            return
        sequence = self.by_key.get((job.event.session, job.event.kernel, event.sequence_id))
        if sequence is None or reason in (EndReason.DUPLICATE_ID, EndReason.BAD_SEQUENCE):
            return
        shadow.seen["sequence ended by a refusal"] += 1
        sequence.is_over = True
        if not sequence.line:
            self._settle(shadow, sequence)

    def _starts_anew(self, sequence: ShadowSequence) -> None:
        """If the first one starts the sequence: the worker is to drop the former state, which has another number."""
        first = sequence.line[0] if sequence.line else None
        if first is None or first.follows is None or not first.follows.is_start or sequence.state == first.event.job:
            return
        if sequence.has_state and sequence.place is not None:
            self.to_drop[sequence.state] = sequence.place
        sequence.has_state, sequence.state = False, first.event.job

    def left(self, shadow: Shadow, job: ShadowJob) -> None:
        """The job is answered, and on no lane."""
        sequence, event = job.sequence, job.follows
        if sequence is None or event is None or job not in sequence.line:
            return
        at = sequence.line.index(job)
        del sequence.line[at]
        has_run = job.launches > 0
        shadow.seen["sequence member answered out of turn"] += at > 0
        if at:
            if event.is_start:
                self._doom(shadow, sequence, at)
        else:
            if event.is_end or sequence.ends or (event.is_start and not has_run):
                self._state_goes(shadow, sequence, is_dropped=event.is_end and has_run)
            if not sequence.has_state:
                self._doom(shadow, sequence, 0)
        self._settle(shadow, sequence)

    def resulted(self, job: ShadowJob, reason: EndReason) -> None:
        """The kernel did not run: what starts its sequence leaves no state."""
        if job.sequence is not None and job.follows is not None and job.follows.is_start:
            job.sequence.ends |= reason is EndReason.PAYLOAD_CHECKSUM

    def _settle(self, shadow: Shadow, sequence: ShadowSequence) -> None:
        self._starts_anew(sequence)
        sequence.idle_ns = shadow.now_ns
        if not sequence.line and sequence.has_state and sequence.is_over:
            self._state_goes(shadow, sequence, is_dropped=False)
        if not sequence.line and not sequence.has_state:
            self.by_key.pop(sequence.key, None)

    def _doom(self, shadow: Shadow, sequence: ShadowSequence, at: int) -> None:
        """From there on they need a state that is gone, up to one that starts anew."""
        for job in sequence.line[at:]:
            if job.follows is not None and job.follows.is_start:
                return
            if job.phase != "answered":
                shadow.expect(job, JobState.CANCELLED)
                job.is_doomed = True
        sequence.is_over = True

    def _state_goes(self, shadow: Shadow, sequence: ShadowSequence, *, is_dropped: bool) -> None:
        if sequence.has_state and sequence.place is not None and not is_dropped:
            self.to_drop[sequence.state] = sequence.place
        self._unbind(shadow, sequence)
        sequence.has_state = sequence.ends = False

    def _unbind(self, shadow: Shadow, sequence: ShadowSequence) -> None:
        lease = shadow.leases.get(sequence.place[0]) if sequence.place is not None else None
        sequence.place = None
        if lease is not None and not lease.lanes and not has_bound(shadow, lease):
            lease.idle_since_ns = shadow.now_ns

    def lane_lost(self, shadow: Shadow, lease: int, lane: int | None) -> None:
        """The states of the lane are gone; None: those of all lanes. Called before what is on the lane is told so."""
        for sequence in list(self.by_key.values()):
            place = sequence.place
            if place is None or place[0] != lease or lane not in (None, place[1]):
                continue
            self._state_goes(shadow, sequence, is_dropped=True)
            shadow.seen["sequence lost its lane"] += 1
            first = sequence.line[0] if sequence.line else None
            is_new = first is not None and first.follows is not None and first.follows.is_start and not first.launches
            if is_new and first is not None and first.phase != "answered":
                continue
            self._doom(shadow, sequence, 0 if first is not None and first.phase == "queued" else 1)
            if first is not None and first.phase in ("copying", "waiting"):
                first.is_doomed = True
            self._settle(shadow, sequence)

    def lease_ends(self, shadow: Shadow, lease: int) -> None:
        """The states on the lease may not stay; what is on a lane finishes there."""
        for sequence in list(self.by_key.values()):
            if sequence.place is None or sequence.place[0] != lease or sequence.ends:
                continue
            if sequence.line and self._is_on_a_lane(shadow, sequence.line[0]):
                sequence.ends = True
                self._doom(shadow, sequence, 1)
                shadow.seen["sequence ends behind its head"] += 1
                continue
            self._state_goes(shadow, sequence, is_dropped=False)
            self._doom(shadow, sequence, 0)
            self._settle(shadow, sequence)

    def _is_on_a_lane(self, shadow: Shadow, job: ShadowJob) -> bool:
        return any(job in held.members for lease in shadow.leases.values() for held in lease.lanes.values())

    def tenants_left(self, shadow: Shadow) -> None:
        """Their tenants were removed."""
        for sequence in [each for each in self.by_key.values() if each.tenant in shadow.removed]:
            if not sequence.line or not self._is_on_a_lane(shadow, sequence.line[0]):
                sequence.is_over = True
                self._state_goes(shadow, sequence, is_dropped=False)
                self._settle(shadow, sequence)
            else:
                sequence.ends = sequence.is_over = True

    def session_closed(self, shadow: Shadow, session: int) -> None:
        """All its sequences end at once."""
        for key in [key for key in self.by_key if key[0] == session]:
            sequence = self.by_key.pop(key)
            self._state_goes(shadow, sequence, is_dropped=False)
            for job in sequence.line:
                job.sequence = None

    def times_pass(self, shadow: Shadow) -> None:
        """Leases that drain wait for their sequences only so long."""
        for lease in shadow.leases.values():
            if lease.drains_ns and lease.drains_ns + shadow.settings.sequence_idle_ns <= shadow.now_ns:
                self.lease_ends(shadow, lease.opened.lease)

    # -- commands -------------------------------------------------------------------------------------------------
    def judge_placement(self, command: Copy, job: ShadowJob) -> None:
        """A job of a sequence gets a lane."""
        sequence, event = job.sequence, job.follows
        assert event is not None
        promise(sequence is not None, f"{command}: its sequence has ended")
        assert sequence is not None
        numbers = [each.event.job for each in sequence.line]
        promise(sequence.line[0] is job, f"{command}: jobs {numbers} are in line in its sequence")
        place = command.lease, command.lane
        promise(sequence.place in (None, place), f"{command}: its state is in {sequence.place}")
        promise(sequence.has_state or event.is_start, f"{command}: no worker has its state, and it starts none")

    def launched(self, shadow: Shadow, job: ShadowJob, place: Place) -> None:
        """A kernel runs: if it starts no state, it must find one."""
        sequence, event = job.sequence, job.follows
        if event is None:
            return
        promise(sequence is not None and not job.is_doomed, f"job {job.event.job} is launched without its state")
        assert sequence is not None
        promise(event.is_start or sequence.has_state, f"job {job.event.job} is launched before its start")
        promise(sequence.place == place, f"job {job.event.job} is launched in {place}, its state is {sequence.place}")
        shadow.seen["sequence member launched"] += not event.is_start
        sequence.has_state = True

    def judge_end(self, shadow: Shadow, command: EndSequence) -> None:
        """A worker is to drop a state: of a sequence that ended, or was idle long enough."""
        lease = shadow.leases.get(command.lease)
        is_there = lease is not None and lease.opened.generation == command.generation and not lease.asked
        promise(is_there and lease is not None and command.lane not in lease.lost, f"{command}: no worker is there")
        place = self.to_drop.pop(command.sequence, None)
        if place is None:
            sequence = next((each for each in self.by_key.values() if each.state == command.sequence), None)
            promise(sequence is not None and sequence.has_state, f"{command}: there is no such state")
            assert sequence is not None
            is_due = sequence.idle_ns + shadow.settings.sequence_idle_ns <= shadow.now_ns
            promise(not sequence.line and is_due, f"{command}: it was not idle for so long")
            place = sequence.place
            self._unbind(shadow, sequence)
            del self.by_key[sequence.key]
            shadow.seen["sequence idle"] += 1
        promise(place == (command.lease, command.lane), f"{command}: the state is in {place}")

    # -- after a step ---------------------------------------------------------------------------------------------
    def awaits(self, job: ShadowJob) -> bool:
        """A queued job that waits for its sequence, not for any lane."""
        sequence = job.sequence
        return sequence is not None and (sequence.line[0] is not job or sequence.place is not None)

    def after(self, shadow: Shadow, book: JobBook) -> None:
        """Nothing waits for a free lane; the book's tables are right, and it looks when a sequence was idle."""
        for number, (lease, lane) in list(self.to_drop.items()):
            held = shadow.leases.get(lease)
            is_there = held is not None and lane not in held.lost and not held.asked
            promise(not is_there, f"the worker in {lease, lane} keeps the state of sequence {number}")
        self.to_drop.clear()
        known = {each.number for each in self.by_key.values()}
        promise(set(book.ledger.sequences) == known, f"sequences {set(book.ledger.sequences)}, not {known}")
        next_ns, bound = book.next_deadline_ns(), dict[int, Counter[int]]()
        for sequence in self.by_key.values():
            if sequence.place is not None:
                bound.setdefault(sequence.place[0], Counter())[sequence.place[1]] += 1
                self._after_bound(shadow, sequence)
            if not sequence.line:
                due = sequence.idle_ns + shadow.settings.sequence_idle_ns
                promise(next_ns is not None and next_ns <= due, f"nobody ends {sequence.key} when it was idle")
        for number, one in book.ledger.leases.items():
            promise(one.sequences == dict(bound.get(number, {})), f"lease {number} has sequences {one.sequences}")
            shadow.seen["lane of several sequences"] += any(count > 1 for count in one.sequences.values())
        counts = Counter(each.tenant for each in self.by_key.values())
        awaiting = Counter(
            job.tenant for job in shadow.live.values() if job.phase == "queued" and self.awaits(job)
        )  # fmt: skip
        for name, tenant in book.ledger.tenants.items():
            promise(tenant.sequences == counts[name], f"{name} has {counts[name]} sequences, not {tenant.sequences}")
            promise(tenant.awaiting == awaiting[name], f"{name}: {awaiting[name]} await, not {tenant.awaiting}")

    def _after_bound(self, shadow: Shadow, sequence: ShadowSequence) -> None:
        assert sequence.place is not None
        lease = shadow.leases.get(sequence.place[0])
        promise(lease is not None, f"sequence {sequence.key} is bound to a lease that is gone")
        assert lease is not None
        promise(sequence.place[1] not in lease.lost, f"sequence {sequence.key} is bound to a lost lane")
        is_free = sequence.place[1] not in lease.lanes
        is_waiting = bool(sequence.line) and sequence.line[0].phase == "queued"
        promise(not (is_free and is_waiting), f"lane {sequence.place} is free, and its sequence waits")


def followed(shadow: Shadow, event: events.SequenceSubmitted) -> None:
    """The job that was submitted is of a sequence."""
    shadow.jobs[event.submitted.job].follows = event


def has_bound(shadow: Shadow, lease: ShadowLease) -> bool:
    """True if sequences are bound to the lease."""
    return any(
        each.place is not None and each.place[0] == lease.opened.lease for each in shadow.sequences.by_key.values()
    )
