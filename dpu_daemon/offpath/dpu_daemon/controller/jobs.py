"""The jobs that a controller knows: admitted, placed on hosts, seen in what agents say, over. The store does I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from offpath.bindings.errors import RequestRefused
from offpath.dpu_daemon.controller.store import Store
from offpath.sched.ina.protocol.records import RankState
from offpath.sched.placement.cluster import Cluster
from offpath.sched.placement.port import Placement, Request
from offpath.sched.topology.graph import Topology

REST_NS: Final = 5_000_000_000
"""A job whose ranks have all ended may come back as a new incarnation for so long; then its hosts are free."""
_MOST_JOBS: Final = 65_536
MOST_RANKS_PER_HOST: Final = 1024
"""Live ranks of all jobs that one host may report; the more are refused."""
_MOST_INTEGER: Final = (1 << 63) - 1


class JobRefused(RequestRefused):
    """The controller does not take the job in, or does not know it or the host; ``code`` is stable."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code, self.detail = code, detail


@dataclass(slots=True)
class Job:
    """``hosts``: names, in the order of ranks; ``is_submitted``: by an operator, else it was met at work."""

    name: str
    hosts: tuple[str, ...]
    ranks_per_host: int
    since_ns: int
    reasons: tuple[str, ...] = ()
    is_submitted: bool = True
    incarnation: int = 0
    ranks: dict[int, str] = field(default_factory=dict)
    """Those that live, with their hosts."""
    ended_ns: int | None = None
    """When the last of its ranks ended."""
    cancelled: int | None = None
    """Nothing up to this incarnation gets anything any more."""

    @property
    def state(self) -> str:
        """For people."""
        if self.cancelled is not None and self.incarnation <= self.cancelled:
            return "cancelled"
        if self.ended_ns is not None:
            return "ended"
        return "running" if self.ranks else "waiting"

    def rank_hosts(self) -> tuple[str, ...]:
        """By rank, as it was placed; empty if it was not."""
        return tuple(host for host in self.hosts for _ in range(self.ranks_per_host)) if self.is_submitted else ()


class Jobs:
    """``most_ranks``: of all jobs together on one host."""

    def __init__(self, topology: Topology, placement: Placement, store: Store, most_ranks: int) -> None:
        self._topology, self._placement, self._store = topology, placement, store
        self._most_ranks = most_ranks
        self._jobs: dict[str, Job] = {}
        self._counts: Counter[str] = Counter()
        """Live ranks by host."""

    def remember(self, now_ns: int) -> None:
        """What an earlier controller wrote down; rows that make no sense are left out."""
        for data in self._store.kept.jobs:
            job = _remembered(data, now_ns)
            if job is not None and set(job.hosts) <= self._topology.host_numbers.keys():
                self._jobs[job.name] = job

    def known(self) -> tuple[Job, ...]:
        """By name."""
        return tuple(self._jobs[name] for name in sorted(self._jobs))

    def knows(self, name: str) -> bool:
        """It is one of them."""
        return name in self._jobs

    def get(self, name: str) -> Job:
        """Raises: JobRefused."""
        job = self._jobs.get(name)
        if job is None:
            raise JobRefused("unknown_job", f"no job is called {name!r:.80}")
        return job

    # -- operators ------------------------------------------------------------------------------------------------
    def submit(self, name: str, hosts: int, on: Sequence[str], ranks_per_host: int, now_ns: int) -> Job:
        """Take it in and place it. Raises: JobRefused."""
        known = self._jobs.get(name)
        if known is not None and known.state in ("waiting", "running"):
            raise JobRefused("job_exists", f"{name} is {known.state}")
        if len(self._jobs) >= _MOST_JOBS:
            raise JobRefused("jobs", f"{_MOST_JOBS} jobs are known")
        if bool(hosts) is bool(on):
            raise JobRefused("hosts", "either a number of hosts, or their names")
        cluster = self._cluster(ranks_per_host)
        reasons: tuple[str, ...]
        if on:
            chosen, reasons = self._named(on, cluster), ("its submitter named them",)
        else:
            decision = self._placement.place(cluster, Request(hosts))
            if not decision.is_placed:
                raise JobRefused("no_room", "; ".join(decision.reasons)[:400])
            chosen, reasons = tuple(self._topology.names[host] for host in decision.hosts), decision.reasons
        job = self._jobs[name] = Job(name, chosen, ranks_per_host, now_ns, reasons)
        if known is not None:
            job.cancelled = known.cancelled
        self._store.job(name, _data(job))
        return job

    def _cluster(self, ranks_per_host: int) -> Cluster:
        """Hosts without room for so many ranks more are busy."""
        taken: Counter[str] = Counter()
        for job in self._jobs.values():
            if job.state in ("waiting", "running"):
                taken.update(dict.fromkeys(job.hosts, job.ranks_per_host))
        full = [
            number for name, number in self._topology.host_numbers.items()
            if taken[name] + ranks_per_host > self._most_ranks
        ]  # fmt: skip
        return Cluster(self._topology, full)

    def _named(self, on: Sequence[str], cluster: Cluster) -> tuple[str, ...]:
        numbers = self._topology.host_numbers
        for host in on:
            if host not in numbers:
                raise JobRefused("unknown_host", f"no host of the topology is called {host!r:.80}")
            if not cluster.is_free(numbers[host]):
                raise JobRefused("no_room", f"{host} has no room for its ranks")
        if len(set(on)) != len(on):
            raise JobRefused("hosts", "a host is named twice")
        return tuple(on)

    def cancel(self, name: str) -> Job:
        """It gets nothing any more, unless it begins anew; one that did not begin is forgotten. Raises: JobRefused."""
        job = self.get(name)
        job.cancelled = job.incarnation
        if job.incarnation:
            self._store.job(name, _data(job))
        else:
            del self._jobs[name]
            self._store.forget(name)
        return job

    # -- agents ---------------------------------------------------------------------------------------------------
    def is_cancelled(self, name: str, incarnation: int) -> bool:
        """Nobody is to hear of it."""
        job = self._jobs.get(name)
        return job is not None and job.cancelled is not None and incarnation <= job.cancelled

    def runs_on(self, name: str, incarnation: int, host: str) -> bool:
        """Ranks of the job's newest incarnation, which this is, live on the host."""
        job = self._jobs.get(name)
        return job is not None and job.incarnation == incarnation and host in job.ranks.values()

    def seen(
        self, host: str, states: Iterable[RankState], connected: Collection[str], now_ns: int
    ) -> tuple[list[RankState], list[str]]:
        """Ranks of a host: the states that count, and the jobs of which some do not because they are other hosts'.
        A job that nobody submitted is taken in: its ranks are there, whoever placed them. ``connected``: hosts whose
        agents can be reached."""
        changed: dict[str, Job] = {}
        kept: list[RankState] = []
        contested: list[str] = []
        for state in states:
            job = self._jobs.get(state.job)
            if job is None and (state.is_gone or len(self._jobs) >= _MOST_JOBS):
                continue
            if job is not None and not self._is_its(job, state, host, connected):
                contested.append(job.name)
                continue
            is_new = not state.is_gone and (job is None or job.ranks.get(state.rank) != host)
            if is_new and self._counts[host] >= MOST_RANKS_PER_HOST:
                continue
            if job is None:
                job = self._jobs[state.job] = Job(state.job, (), 0, now_ns, ("it was met at work",), is_submitted=False)
            kept.append(state)
            if state.incarnation < job.incarnation:
                continue
            if self._take(job, host, state):
                changed[job.name] = job
            job.ended_ns = None if job.ranks else (job.ended_ns or now_ns)
        self._write(changed.values())
        return kept, contested

    def _is_its(self, job: Job, state: RankState, host: str, connected: Collection[str]) -> bool:
        """Whether the host may speak for that rank of the job: not if the job was placed elsewhere, nor if another
        host has the rank, nor for a new incarnation of a job that lives on other hosts."""
        if job.is_submitted and job.state != "cancelled":
            if host not in job.hosts:
                return False
            if state.incarnation > job.incarnation:
                return True
        if state.incarnation < job.incarnation:
            return True  # of no effect
        if state.incarnation == job.incarnation:
            return job.ranks.get(state.rank, host) == host
        return not job.ranks or host in job.ranks.values() or not any(at in connected for at in job.ranks.values())

    def _take(self, job: Job, host: str, state: RankState) -> bool:
        """True: it is to be written down."""
        is_newer = state.incarnation > job.incarnation
        if is_newer:
            self._counts.subtract(job.ranks.values())
            job.incarnation, job.ranks = state.incarnation, {}
        before = job.ranks.get(state.rank)
        if state.is_gone:
            job.ranks.pop(state.rank, None)
            self._counts[host] -= before is not None
            return is_newer
        job.ranks[state.rank] = host
        self._counts[host] += before is None
        return is_newer or before is None

    def quarantined(self, host: str, now_ns: int) -> None:
        """What the host said of its ranks counts no more: they are not known to live."""
        for job in self._jobs.values():
            there = [rank for rank, at in job.ranks.items() if at == host]
            for rank in there:
                del job.ranks[rank]
            if there and not job.ranks:
                job.ended_ns = now_ns
        del self._counts[host]

    def _write(self, changed: Iterable[Job]) -> None:
        for job in changed:
            if not job.is_submitted:
                job.hosts = tuple(dict.fromkeys(job.ranks[rank] for rank in sorted(job.ranks)))
                job.ranks_per_host = max(Counter(job.ranks.values()).values(), default=0)
            self._store.job(job.name, _data(job))

    def over(self, now_ns: int) -> tuple[str, ...]:
        """Jobs that have ended for good; they are forgotten with this call."""
        found = [
            job.name for job in self._jobs.values() if job.ended_ns is not None and now_ns >= job.ended_ns + REST_NS
        ]  # fmt: skip
        for name in found:
            self._counts.subtract(self._jobs[name].ranks.values())
            del self._jobs[name]
            self._store.forget(name)
        return tuple(found)


def _data(job: Job) -> dict[str, Any]:
    return {
        "name": job.name, "hosts": list(job.hosts), "ranks_per_host": job.ranks_per_host,
        "is_submitted": job.is_submitted, "reasons": list(job.reasons), "cancelled": job.cancelled,
        "incarnation": job.incarnation,
    }  # fmt: skip


def _remembered(data: dict[str, Any], now_ns: int) -> Job | None:
    match data:
        case {
            "name": str(name), "hosts": list(hosts), "ranks_per_host": int(count), "is_submitted": bool(is_submitted),
            "reasons": list(reasons), "cancelled": cancelled, "incarnation": int(incarnation),
        } if (
            0 <= count <= 1024 and all(isinstance(host, str) for host in hosts) and 0 < len(name) <= 255
            and name.isprintable() and 0 <= incarnation <= _MOST_INTEGER
        ):  # fmt: skip
            job = Job(name, tuple(hosts), count, now_ns, tuple(map(str, reasons)), is_submitted)
            job.incarnation = incarnation
            job.cancelled = cancelled if isinstance(cancelled, int) and 0 <= cancelled <= _MOST_INTEGER else None
            return job
    return None
