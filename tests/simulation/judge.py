"""What must hold, whatever happens: the invariants I1 to I15 of a node, judged from the ground.

The judge stands where the bytes are: in the requesters' memory, in the lanes, at the kernels. It looks into the daemon
only to compare (which job is which request) and for bounds. I7, I8 and I10 speak of in-network aggregation, which is
not built; I11 of its lock-free agents likewise.

- I1 space, I2 scrubbed between tenants: `lane_reserved`, `instance_left`, `copy_lands`, `SimGpu.taken`
- I3, I4 slots: `submit_read`, `copy_posted`, `answer_written`
- I5 launches, stale generations: `launch_came`, `kernel_starts`
- I6 one answer, conservation: `answer_written`, `answer_taken`, `after_step`
- I9 generations rise: `lease_ordered`
- I12 bounds: `after_step`, `at_rest`
- I13 no starvation: `World.heal`
- I14 replay: `World._journal`, `went_on`
- I15 the tenant comes from the session: `kernel_starts`
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from offpath.bindings.errors import HeaderError
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import AnswerHeader, parse_answer
from offpath.host_helper.slots import DEFAULT_OPTIONS, Options
from offpath.sched.jobs import commands, events
from offpath.sched.jobs.book import MAX_ATTEMPTS, JobBook
from offpath.sched.jobs.states import FIRST_TERMINAL

from . import batches, sequences, streams
from .gpu import SimGpu, Tenancy
from .promises import break_promise, promise
from .wires import Flight, Memory, SessionMemory

if TYPE_CHECKING:
    from .requesters import SimRequester
    from .worker import SimWorker
    from .world import World

_MAY_CARRY = (
    Reason.KERNEL_RAISED,
    Reason.RESULT_TOO_LARGE,
    Reason.PAYLOAD_CHECKSUM,
    Reason.RESULT_NOT_SPLIT,
    Reason.STREAM_MISMATCH,
)
_WAKE_SLACK_NS = 2_000_000


@dataclass(slots=True, eq=False)
class Request:
    """One filled slot, as the requester that filled it knows it."""

    requester: SimRequester
    session: SessionMemory
    slot: int
    request_id: int
    kernel: str
    payload: bytes
    is_idempotent: bool
    budget_ns: int
    read_ns: int = 0
    landed_ns: int = 0
    """When a result was last copied to its slot: an answer waits for that."""
    job: int = 0
    starts: int = 0
    deaths: int = 0
    """Workers, helpers or daemons that died with a launch of it."""
    is_cancelled: bool = False
    is_lied_about: bool = False
    """Its worker said something else than its kernel."""
    answer: AnswerHeader | None = None
    is_taken: bool = False
    options: Options = DEFAULT_OPTIONS
    given: int = 0
    """Answers of its stream that were written."""
    taken: int = 0
    """Of these, those that it took."""
    free_ns: int = 0
    """When it took the last one, or resumed its session since."""
    ended_ns: int = 0
    """When the book answered it."""
    current: AnswerHeader | None = None
    """The last of them."""

    def __str__(self) -> str:
        return f"request {self.request_id} of {self.requester.name} ({self.kernel}, slot {self.slot})"


@dataclass(slots=True, eq=False)
class _Slot:
    """A slot as the daemon may treat it: sealed from the doorbell's reading to the answer's writing. ``written`` is
    what its requester wrote last, ``request`` what the daemon read."""

    written: Request | None = None
    request: Request | None = None
    is_sealed: bool = False


class Judge:
    """Raises `Violation` at the first broken promise."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._slots: dict[SessionMemory, dict[int, _Slot]] = {}
        self.sessions: dict[int, SessionMemory] = {}
        self._by_job: dict[int, Request] = {}
        self._launched: dict[int, tuple[int, int, int]] = {}
        """Job → lease, lane, time."""
        self._unwanted: set[tuple[int, int]] = set()
        """Generation, lane of workers that are to be killed."""
        self._live: dict[int, Request] = {}
        self._generation = 0
        self._opened: dict[int, int] = {}
        self.accepted = 0
        self.answered = 0
        self.answers: dict[str, int] = {}
        self.kernels_started = 0
        self.tenant_changes = 0
        self._last_holder: dict[int, str] = {}
        self._last_tenancy: dict[tuple[SimGpu, int], Tenancy] = {}
        self._in_batch: dict[int, tuple[tuple[int, int], ...]] = {}
        """Leader → its batch, or itself alone, as last copied: each job with its first row."""
        self._batch_of: dict[int, tuple[int, ...]] = {}
        """Job → the jobs with which it was last copied, and itself."""
        self._placed: dict[int, tuple[int, int]] = {}
        """Job → generation and lane of its last copy."""
        self.sequences = sequences.Sequences()
        self._unread_ns: dict[str, int] = {}
        """Requester → until when its doorbells may be left unread: it was told to wait."""
        self._code: dict[int, int] = {}
        """Job → the revision of its helper's kernels when it was placed."""
        self._former: dict[str, int] = {}
        """Helper → its revision before the event that is handled, if timers place jobs before it."""

    # -- requests and slots ---------------------------------------------------------------------------------------
    def filled(self, request: Request) -> None:
        """The requester is about to ring."""
        slots = self._slots.setdefault(request.session, {})
        slots.setdefault(request.slot, _Slot()).written = request
        self.sequences.filled(request)

    def submit_read(self, session: SessionMemory, slot_number: int) -> None:
        """The daemon takes a submit doorbell: from here on the slot is its own, if it was free."""
        slot = self._slots.setdefault(session, {}).setdefault(slot_number, _Slot())
        if slot.is_sealed:
            return  # a hostile doorbell; the session judges it
        slot.is_sealed = True
        slot.request = slot.written
        if slot.request is not None and slot.request.read_ns:  # only a hostile one rings twice for the same header
            slot.request = replace(
                slot.request, job=0, starts=0, deaths=0, is_lied_about=False, answer=None, is_taken=False, given=0,
                taken=0,
            )  # fmt: skip
        if slot.request is not None:
            slot.request.read_ns = self._world.loop.now_ns

    def _sealed(self, session: SessionMemory, slot_number: int) -> Request | None:
        slot = self._slots.get(session, {}).get(slot_number)
        return slot.request if slot is not None and slot.is_sealed else None

    def answer_written(self, session: SessionMemory, slot_number: int, header: bytes, inline: bytes) -> None:
        """The one answer of what lies in the slot."""
        slot = self._slots.get(session, {}).get(slot_number)
        promise(
            slot is not None and slot.is_sealed, f"an answer is written to slot {slot_number}, which waits for none"
        )
        assert slot is not None
        request = slot.request
        try:
            answer = parse_answer(header, session.result_bytes)
        except HeaderError as broken:
            promise(False, f"the daemon wrote an answer that breaks a rule: {broken}")
            raise
        if answer.has_more:
            self._stream_written(request, answer)
            return
        slot.is_sealed = False
        if answer.reason is Reason.BAD_HEADER:
            promise(request is None or request.requester.is_hostile, f"{request} is refused as a bad header")
            return
        assert request is not None
        promise(answer.request_id == request.request_id, f"the answer for {request} names {answer.request_id}")
        promise(request.answer is None, f"{request} is answered a second time")
        promise(self._is_free(request), f"the end of {request} is written over answer {request.given}, not taken yet")
        request.answer = answer
        self.answers[answer.status.name] = self.answers.get(answer.status.name, 0) + 1
        self._judge_answer(request, answer, inline)
        if answer.status is Status.COMPLETED and not request.is_lied_about:
            self._judge_batch(request, answer)

    def _judge_batch(self, request: Request, answer: AnswerHeader) -> None:
        """The answer has the rows and the number of a launch that the request shared, and of no other."""
        jobs = self._batch_of[request.job]
        rows = sum(len(self._by_job[job].payload) // batches.ROW for job in jobs) if len(jobs) > 1 else 0
        promise(answer.batch_rows == rows, f"{request} shared a launch of {rows} rows, not {answer.batch_rows}")
        promise(bool(answer.batch) == (rows > 0), f"the launch of {request} has number {answer.batch}")

    def _is_free(self, request: Request) -> bool:
        """Nothing lies in its slot that its requester may be reading. (One that left reads no more.)"""
        owner = request.requester
        return request.given == request.taken or owner.is_hostile or not request.session.has_peer

    def _stream_written(self, request: Request | None, answer: AnswerHeader) -> None:
        """One of several answers: the next one, after the one before was taken."""
        assert request is not None
        promise(answer.request_id == request.request_id, f"answer of a stream to {request} names {answer.request_id}")
        promise(request.answer is None, f"{request} gets answer {answer.number} after its end")
        promise(request.starts, f"{request} gets answer {answer.number} and never started")
        promise(self._is_free(request), f"answer {answer.number} of {request} is written over one that was not taken")
        promise(answer.number == request.given + 1, f"{request} gets answer {answer.number} after {request.given}")
        request.given, request.current = answer.number, answer

    def stream_taken(self, request: Request, answer: bytes, result: bytes) -> None:
        """The requester has one of several answers: the next one, and its bytes."""
        read = parse_answer(answer, request.session.result_bytes)
        promise(read == request.current, f"answer {request.given} of {request} changed after it was written")
        promise(request.given == request.taken + 1, f"{request} takes answer {request.given} after {request.taken}")
        request.taken += 1
        request.free_ns = self._world.loop.now_ns
        answers = streams.answers_of(request.payload)
        if not request.is_lied_about:
            is_right = request.taken <= len(answers) and result == answers[request.taken - 1]
            promise(is_right, f"answer {request.taken} of {request} is wrong")

    def _judge_answer(self, request: Request, answer: AnswerHeader, inline: bytes) -> None:
        status, reason, now_ns = answer.status, answer.reason, self._world.loop.now_ns
        if request.is_lied_about and status in (Status.COMPLETED, Status.FAILED):
            return
        if status is Status.COMPLETED:
            promise(request.starts, f"{request} is COMPLETED and never started")
            promise(answer.number == request.given, f"{request} ends after {request.given} answers; {answer.number}")
        elif reason not in _MAY_CARRY:
            promise(not answer.result_bytes, f"{request} ends {status.name} ({reason.name}) and carries a result")
        if status is Status.RETRY_SAFE:
            promise(not request.starts, f"{request} is RETRY_SAFE and has started")
        elif status is Status.REJECTED:
            promise(not request.starts, f"{request} is REJECTED and has started")
            self._unread_ns[request.requester.name] = now_ns + answer.retry_after_ms * 1_000_000
        elif status is Status.OUTCOME_UNKNOWN:
            promise(request.deaths, f"{request} is OUTCOME_UNKNOWN though nothing died beneath it")
        elif status is Status.EXPIRED:
            due = request.read_ns + request.budget_ns
            promise(request.budget_ns and now_ns >= due, f"{request} expires before its time")
        elif status is Status.CANCELLED:
            is_wanted = request.is_cancelled or request.requester.is_hostile or reason is Reason.TENANT_REMOVED
            has_left = reason is Reason.SESSION_CLOSED and not request.requester.is_there()
            has_no_gpu = reason is Reason.NO_INSTANCE_FITS and self._world.counts["gpu_dies"]
            is_lost = sequences.may_end(request, reason)
            promise(is_wanted or has_left or has_no_gpu or is_lost, f"{request} is CANCELLED and nobody asked for that")
        is_steps = bool(request.options.sequence_id) and not request.requester.is_hostile
        promise(not is_steps or reason is not Reason.KERNEL_RAISED, f"{request} met no kernel that raises")
        promise(reason is not Reason.RESULT_NOT_SPLIT, f"{request} is told that its kernel returned other rows")
        if status is Status.FAILED and reason is Reason.COPY_FAILED:
            promise(self._world.counts["copy_fails"], f"{request} says that a copy failed; none did")
        if reason is Reason.TENANT_REMOVED:
            promise(self._world.removals[request.requester.tenant], f"{request} ends as if its tenant were removed")
        if reason is Reason.KERNEL_OVERRAN:
            limit_ns = self._world.least_kernel_ns
            ran_ns = now_ns - self._launched[request.job][2]
            promise(limit_ns and ran_ns >= limit_ns, f"{request} is said to have overrun after {ran_ns} ns")
        is_honest = request.requester.is_there() and not request.requester.is_hostile
        if request.budget_ns and status is not Status.REJECTED and (not request.given or is_honest):
            world = self._world
            unread_ns = self._unread_ns.get(request.requester.name, 0) if request.given else 0
            late = now_ns - max(request.read_ns + request.budget_ns, request.landed_ns, request.free_ns, unread_ns)
            promise(late < _WAKE_SLACK_NS + world.late_ns, f"{request} is answered {late} ns after its time")

    def answer_taken(self, request: Request, answer: bytes, result: bytes) -> None:
        """The requester has it: the same bytes, and the right result."""
        promise(request.answer is not None, f"{request} has an answer that was never written")
        promise(not request.is_taken, f"{request} is rung twice")
        request.is_taken = True
        read = parse_answer(answer, request.session.result_bytes)
        promise(read == request.answer, f"the answer of {request} changed after it was written")
        if request.kernel == streams.NAME:
            all_taken = request.taken == len(streams.answers_of(request.payload))
            is_whole = all_taken and not streams.raises(request.payload) and not result
            promise(read.status is not Status.COMPLETED or request.is_lied_about or is_whole, f"{request} has a gap")
        elif read.status is Status.COMPLETED and not request.is_lied_about:
            promise(result == result_of(request.kernel, request.payload), f"{request} got a wrong result")

    # -- what the book heard and said -----------------------------------------------------------------------------
    def book_heard(self, event: events.Event, now_ns: int) -> None:
        ledger = self._world.daemon.requests.book.ledger
        # Timers that are due place jobs before the event is looked at.
        is_later = isinstance(event, events.KernelsReloaded) and ledger.timers.are_due(now_ns)
        self._former = {name: helper.revision for name, helper in ledger.helpers.by_name.items()} if is_later else {}
        if isinstance(event, events.StackSubmitted | events.SequenceSubmitted):
            event = event.submitted
        if isinstance(event, events.JobSubmitted):
            self.accepted += 1
            session = self.sessions.get(event.session)
            promise(session is not None, f"job {event.job} of a session that nobody holds")
            assert session is not None
            candidates = [s.request for s in self._slots[session].values() if s.is_sealed and s.request is not None]
            for request in candidates:
                if request.request_id == event.request_id and not request.job:
                    request.job = event.job
                    self._by_job[event.job] = self._live[event.job] = request
                    return
            promise(False, f"job {event.job} is no request of its session")

    def book_said(self, command: commands.Command) -> None:
        if isinstance(command, commands.Answer):
            self.answered += 1
            request = self._live.pop(command.job, None)
            promise(request is not None, f"job {command.job} gets a second end")
            assert request is not None
            request.ended_ns = self._world.loop.now_ns
        elif isinstance(command, commands.Launch):
            for job, _ in self._in_batch.get(command.job, ((command.job, 0),)):
                promise(job in self._live, f"job {job} is launched after its end")
                self._launched[job] = command.lease, command.lane, self._world.loop.now_ns
        elif isinstance(command, commands.KillLane):
            self._unwanted.add((command.generation, command.lane))
            for worker in (worker for helper in self._world.helpers.values() for worker in helper.workers()):
                if (worker.order.generation, worker.lane) == (command.generation, command.lane):
                    promise(not worker.waits_in_vain(), f"the stream of {worker} ended, and nobody stops its kernel")
            for job, (lease, lane, _) in self._launched.items():
                if (lease, lane) == (command.lease, command.lane):
                    self._by_job[job].deaths += 1
        elif isinstance(command, commands.OpenLease):
            promise(command.generation > self._generation, f"generation {command.generation} does not rise")
            self._generation = command.generation
        elif isinstance(command, commands.Copy | commands.CopyBatch):
            members = command.members if isinstance(command, commands.CopyBatch) else ((command.job, 0),)
            self._in_batch[command.job] = members
            self._batch_of |= dict.fromkeys([job for job, _ in members], tuple(job for job, _ in members))
            ledger = self._world.daemon.requests.book.ledger
            for job, _ in members:
                tenants = {self._by_job[each].requester.tenant for each, _ in members}
                promise(len(tenants) == 1, f"job {job} shares a batch with jobs of {tenants}")
                lease = ledger.leases[command.lease]
                place = lease.generation, command.lane
                if self._placed.get(job) != place:  # else its batch is closed up where it is
                    self._placed[job] = place
                    name = lease.view.helper
                    self._code[job] = self._former.get(name, ledger.helpers.by_name[name].revision)

    def lied_about(self, request: Request) -> None:
        """What its worker says of its launch is worth nothing."""
        for mate in self.mates(request):
            mate.is_lied_about = True
            mate.deaths += 1

    def mates(self, request: Request) -> list[Request]:
        """The requests of the batch that this one leads, itself first."""
        return [self._by_job[job] for job, _ in self._in_batch.get(request.job, ())] or [request]

    def is_unwanted(self, worker: SimWorker) -> bool:
        """The daemon wants it to be killed."""
        return (worker.order.generation, worker.lane) in self._unwanted

    def is_renewed(self, worker: SimWorker) -> bool:
        """The book has another take its place."""
        order = worker.order
        lease = self._world.daemon.requests.book.ledger.lease_of(order.lease, order.generation)
        return lease is not None and lease.renewals.get(worker.lane, 0) > worker.renewal

    def is_given_up(self, worker: SimWorker) -> bool:
        """The book counts its lane as lost."""
        order = worker.order
        lease = self._world.daemon.requests.book.ledger.lease_of(order.lease, order.generation)
        return lease is not None and worker.lane in lease.lost

    def lease_ordered(self, lease: int, generation: int) -> None:
        """The helper has cut an instance: no other has this generation."""
        held = [tenancy for gpu in self._world.gpus for tenancy in gpu.tenancies.values()]
        same = [tenancy for tenancy in held if tenancy.generation == generation]
        promise(len(same) == 1, f"{same} are all of generation {generation}")
        promise(self._opened.setdefault(generation, lease) == lease, f"generation {generation} comes again")

    # -- the daemon's death ---------------------------------------------------------------------------------------
    def daemon_died(self) -> None:
        """What was in its hands may have any end; only what never started may be called so."""
        for slots in self._slots.values():
            for slot in slots.values():
                if slot.is_sealed and slot.request is not None:
                    slot.request.deaths += 1
        for flight in self._world.engine.flights.values():  # an answer that waited for one is written anew
            flight.note.landed_ns = self._world.loop.now_ns

    def went_on(self, book: JobBook) -> None:
        """A book was replayed: it knows at least what was accepted, and all that was answered has ended in it."""
        self._live.clear()
        for job in book.ledger.jobs.values():
            memory = self.sessions[job.session]
            request = self._slots[memory][job.origin >> 32].request
            if request is None or request.request_id != job.request_id:
                continue  # its credit was on its way: the slot has been used again
            request.job = job.job
            self._by_job[job.job] = request
            if job.is_running and job.placement is not None:  # said by nobody: it was journalled last
                self._launched.setdefault(job.job, (job.placement.lease, job.placement.lane, job.launched_ns))
            if job.state < FIRST_TERMINAL:
                promise(request.answer is None, f"{request} was answered, and its job has not ended")
                self._live[job.job] = request
        promise(len(self._live) == book.ledger.unanswered, "the replayed book counts others than it has")
        for slots in self._slots.values():
            for slot in slots.values():
                if slot.is_sealed and (slot.request is None or not slot.request.job):
                    slot.is_sealed = False  # read, and not accepted: nobody knows of it

    # -- memory ---------------------------------------------------------------------------------------------------
    def lane_reserved(self, gpu: SimGpu, at: int, nbytes: int, tenancy: Tenancy) -> None:
        """A worker takes its lane: what is there must be nobody's, or of the worker that it replaces."""
        is_renewed, self._last_tenancy[gpu, at] = self._last_tenancy.get((gpu, at)) is tenancy, tenancy
        left = 0 if is_renewed else nbytes - gpu.store.count(0, at, at + nbytes)
        promise(not left, f"{tenancy} finds {left} bytes of {self._last_holder.get(at, 'somebody')} in its lane")
        if self._last_holder.get(at, tenancy.tenant) != tenancy.tenant:
            self.tenant_changes += 1
        self._last_holder[at] = tenancy.tenant

    def instance_left(self, gpu: SimGpu, instance: int, tenancy: Tenancy) -> None:
        """The helper says that the instance is closed: but for copies still on their way it is clean."""
        flights = self._world.engine.flights.values()
        if not any(f.target.owner is tenancy for f in flights):
            promise(gpu.is_clean(instance), f"{tenancy} is closed and not clean")

    def copy_posted(self, source: Memory, source_at: int, target: Memory, target_at: int) -> Any:
        """Into a lane only from a slot that is the daemon's; out of a lane only into one that waits for its answer."""
        if isinstance(source.owner, SessionMemory):
            session, slot = source.owner, source.owner.slot_at(source_at, of_answers=False)
            request = self._sealed(session, slot)
            promise(request is not None, f"slot {slot} is read while it is its requester's")
            assert request is not None
            promise(
                target.owner.tenant == request.requester.tenant,
                f"{request} of {request.requester.tenant} is copied to {target.owner}",
            )
            return request
        session, slot = target.owner, target.owner.slot_at(target_at, of_answers=True)
        request = self._sealed(session, slot)
        promise(request is not None, f"a result is copied to slot {slot}, which waits for none")
        assert request is not None
        promise(source.owner.tenant == request.requester.tenant, f"{request} gets a result out of {source.owner}")
        promise(request.starts, f"{request} gets a result and has not started")
        promise(self._is_free(request), f"an answer of {request} is copied over one that was not taken")
        return request

    def copy_lands(self, flight: Flight) -> None:
        """The bytes move now: the lane must still be the lease's, or nobody's, and the slot still wait."""
        request = flight.note
        if isinstance(flight.target.owner, SessionMemory):
            session = flight.target.owner
            slot = session.slot_at(flight.target_at, of_answers=True)
            is_its_slot = not session.has_peer or self._sealed(session, slot) is request
            request.landed_ns = self._world.loop.now_ns
            promise(is_its_slot, f"a late result of {request} lands in a slot that serves another")
            lane = flight.source
        else:
            lane = flight.target
        at = flight.target_at if lane is flight.target else flight.source_at
        holder = self._world.holder(lane.store, at)
        promise(
            holder is None or holder is lane.owner, f"a copy for {request} meets {holder} in the lane it was sent to"
        )

    # -- kernels --------------------------------------------------------------------------------------------------
    def launch_came(self, worker: SimWorker, job: int, generation: int) -> Request:
        """A worker reads a launch."""
        promise(generation == worker.order.generation, f"a launch of generation {generation} comes to {worker}")
        request = self._by_job.get(job)
        promise(request is not None, f"a launch for job {job}, which nobody submitted")
        assert request is not None
        return request

    def kernel_starts(self, worker: SimWorker, request: Request, kernel: str, seen: bytes) -> None:
        """What runs where on which bytes. Called by the kernel itself."""
        self.kernels_started += 1
        request.starts += 1
        most = MAX_ATTEMPTS if request.is_idempotent and not request.options.sequence_id else 1
        promise(request.starts <= most, f"{request} is started {request.starts} times")
        owner = request.requester
        promise(worker.order.tenant == owner.tenant, f"{request} of {owner.tenant} runs on {worker}")
        needed = self._code.get(request.job, 0)
        promise(
            worker.revision >= needed, f"{request} runs on {worker}, which has code {worker.revision}, not {needed}"
        )
        if owner.is_hostile:  # it may have spoilt its own bytes; nobody else's may be there
            number = self._world.number_of(owner.tenant).to_bytes(4, "little")
            known = len(seen) < 12 or seen[8:12] in (bytes(4), number)
            promise(known, f"{request} runs on bytes of another tenant")
            return
        promise(kernel == request.kernel, f"{request} runs as {kernel}")
        promise(len(seen) == len(request.payload), f"{request} runs on {len(seen)} bytes of {len(request.payload)}")
        promise(seen == request.payload, f"{request} runs on bytes that are not its payload")

    def share_used(self, worker: SimWorker, running: int, alpha: int) -> None:
        promise(running <= alpha, f"{running}% run at once on {worker}, which has {alpha}%")

    # -- after each step ------------------------------------------------------------------------------------------
    def after_step(self) -> None:
        """Conservation and bounds; cheap, for it is done after every callback."""
        world = self._world
        daemon = world.daemon
        ledger = daemon.requests.book.ledger
        in_flight = len(self._live)
        if ledger.unanswered != in_flight:
            break_promise(f"{in_flight} jobs wait for an answer; the book counts {ledger.unanswered}")
        for tenant in ledger.tenants.values():
            if tenant.jobs > world.most_jobs[tenant.spec.name]:
                break_promise(f"{tenant.spec.name} has {tenant.jobs} jobs accepted")
        for gone in ledger.departing.values():
            if gone.is_leaving and gone.queued:
                break_promise(f"{gone.spec.name} was removed and still queues")
        if in_flight > world.config.max_jobs:
            break_promise(f"{in_flight} jobs are accepted")
        if len(ledger.jobs) > world.slots_given:
            break_promise("more jobs than slots")
        if sum(not job.is_follower for job in ledger.leaving.values()) > world.lanes_possible:
            break_promise("more jobs leave than there are lanes")
        if len(daemon.requests.answers.refs) > world.slots_given + in_flight:
            break_promise("the shell keeps ended jobs")

    def before_sleep(self, until_ns: int) -> None:
        """Nothing is ready, the clock moves on: not past what the book waits for."""
        next_ns = self._world.daemon.requests.book.next_deadline_ns()
        promise(next_ns is None or until_ns <= next_ns + _WAKE_SLACK_NS, "the daemon sleeps past the book's deadline")

    def unanswered(self) -> list[Request]:
        """Of honest requesters that are still there: rung and without an answer."""
        return [
            slot.written
            for session, slots in self._slots.items()
            for slot in slots.values()
            if slot.written is not None and not slot.written.is_taken
            if session.has_peer and not slot.written.requester.is_hostile
        ]

    def at_rest(self) -> None:
        """Everybody has left: nothing of theirs is kept."""
        world = self._world
        daemon, ledger, host = world.daemon, world.daemon.requests.book.ledger, world.daemon.host
        promise(not self._live, f"jobs {list(self._live)} never end")
        for name, table in (
            ("jobs", ledger.jobs), ("jobs that leave", ledger.leaving), ("the book's sessions", ledger.sessions),
            ("tenants with a backlog", ledger.backlogged), ("sequences", ledger.sequences),
            ("departing tenants", ledger.departing), ("sessions", daemon.requests.sessions.by_number),
            ("jobs of the shell", daemon.requests.answers.refs),
            ("unwritten answers", daemon.requests.answers.unwritten),
            ("awaited lanes", daemon.host.lanes.awaited), ("open generators", world.open_streams),
            ("copies", daemon.requests.copies.in_flight),
            ("held answers", daemon.requests.answers.held), ("what waits for copies", daemon.requests.copies._waiting),
            ("lane copies", daemon.requests.copies.leases()), ("helpers that leave", host._closing_connections),
            ("pending connections", host.pending.waiting), ("grants", world.admission._grants),
            ("tickets", world.admission._by_ticket), ("open tickets", world.listener.tickets._offers),
            ("silent peers", world.listener.pending), ("waiting drops", world.acceptor._drops),
        ):  # fmt: skip
            promise(not table, f"{name} are left over: {table}")
        promise(not world.manager.kept, f"the service manager still keeps {list(world.manager.kept)}")
        names = {tenant.name for tenant in world.config.tenant}
        promise(set(ledger.tenants) == set(world.admission._tenants) == names, "tenants are left over, or missing")
        for tenant in world.admission._tenants.values():
            promise(not tenant.sessions and not tenant.nbytes, f"{tenant.table.name} holds quota after all left")
        for name, tenant_ in ledger.tenants.items():
            promise(not tenant_.jobs and not tenant_.queued, f"{name} has {tenant_.jobs} jobs after all left")
        unpinned = [lease.view.lease for lease in ledger.leases.values() if not lease.is_pinned]
        promise(not unpinned, f"idle leases {unpinned} never close")
        for lease in ledger.leases.values():
            promise(
                not lease.jobs and not lease.orphaned_copies and not lease.running_share, "an idle lease runs something"
            )
        lanes = daemon.host.lanes
        promise(len(lanes.orders) == len(ledger.leases), f"orders {list(lanes.orders)} are left over")
        promise({lease for lease, _ in lanes.links} <= set(ledger.leases), f"lanes {list(lanes.links)} are left over")
        for worker in (worker for helper in world.helpers.values() for worker in helper.workers()):
            promise(not worker.states, f"{worker} keeps states {sorted(worker.states)} after all left")
        held = sum(len(gpu.tenancies) for gpu in world.gpus)
        promise(held <= len(ledger.leases), f"{held} instances for {len(ledger.leases)} leases")


def result_of(kernel: str, payload: bytes) -> bytes:
    """What the kernel makes of a payload."""
    if kernel == batches.NAME:
        return batches.result_of(payload)
    return payload[::-1] * 40 if kernel == "large" else payload[::-1]
