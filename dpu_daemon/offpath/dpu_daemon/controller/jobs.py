"""The jobs that a controller knows: admits, places and tracks them through agents' reports. `Store` does the I/O."""

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
"""After its last rank ends, a job may return as a new incarnation within this time; then its hosts are freed."""
_MOST_JOBS: Final = 65_536
MOST_RANKS_PER_HOST: Final = 1024
"""Live ranks of all jobs that one host may report; further ones are refused."""
_MOST_INTEGER: Final = (1 << 63) - 1


class JobRefused(RequestRefused):
    """The controller refuses the job, or does not know it or the host; ``code`` is stable."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code, self.detail = code, detail


@dataclass(slots=True)
class Job:
    """``hosts``: names, in rank order. ``is_submitted``: by an operator; False: discovered through reports.
    ``switches``: its tree may use only these; None: any."""

    name: str
    hosts: tuple[str, ...]
    ranks_per_host: int
    since_ns: int
    reasons: tuple[str, ...] = ()
    is_submitted: bool = True
    switches: tuple[str, ...] | None = None
    incarnation: int = 0
    ranks: dict[int, str] = field(default_factory=dict)
    """Live ranks and their hosts."""
    ended_ns: int | None = None
    """When the last of its ranks ended."""
    cancelled: int | None = None
    """No incarnation up to this one gets a tree."""

    @property
    def state(self) -> str:
        """State name shown to operators."""
        if self.cancelled is not None and self.incarnation <= self.cancelled:
            return "cancelled"
        if self.ended_ns is not None:
            return "ended"
        return "running" if self.ranks else "waiting"

    def rank_hosts(self) -> tuple[str, ...]:
        """Hosts by rank, as placed; empty if the job was not placed."""
        return tuple(host for host in self.hosts for _ in range(self.ranks_per_host)) if self.is_submitted else ()


class Jobs:
    """``most_ranks``: limit per host, for all jobs together."""

    def __init__(self, topology: Topology, placement: Placement, store: Store, most_ranks: int) -> None:
        self._topology, self._placement, self._store = topology, placement, store
        self._most_ranks = most_ranks
        self._jobs: dict[str, Job] = {}
        self._counts: Counter[str] = Counter()
        """Number of live ranks by host."""

    def remember(self, now_ns: int) -> None:
        """Load jobs stored by an earlier controller; invalid rows are skipped."""
        for data in self._store.kept.jobs:
            job = _remembered(data, now_ns)
            if job is not None and set(job.hosts) <= self._topology.host_numbers.keys():
                self._jobs[job.name] = job

    def known(self) -> tuple[Job, ...]:
        """All jobs, sorted by name."""
        return tuple(self._jobs[name] for name in sorted(self._jobs))

    def knows(self, name: str) -> bool:
        """Whether the job is known."""
        return name in self._jobs

    def get(self, name: str) -> Job:
        """Raises: JobRefused."""
        job = self._jobs.get(name)
        if job is None:
            raise JobRefused("unknown_job", f"no job is named {name!r:.80}")
        return job

    # -- operators ------------------------------------------------------------------------------------------------
    def submit(
        self, name: str, hosts: int, on: Sequence[str], ranks_per_host: int, now_ns: int,
        switches: Sequence[str] | None = None,
    ) -> Job:  # fmt: skip
        """Admit and place a job. One that is known with ``switches``, or was discovered on some of the hosts ``on``,
        may be submitted again with ``switches``: hosts and switches are then replaced. Raises: JobRefused."""
        if switches is not None and not on:
            raise JobRefused("hosts", "a job that is restricted to switches needs the names of its hosts")
        known = self._jobs.get(name)
        if known is not None and known.state in ("waiting", "running"):
            if switches is None or not _may_be_replaced(known, on):
                raise JobRefused("job_exists", f"{name} is {known.state}")
            return self._replace(known, on, ranks_per_host, switches)
        if len(self._jobs) >= _MOST_JOBS:
            raise JobRefused("jobs", f"the limit of {_MOST_JOBS} jobs is reached")
        if bool(hosts) is bool(on):
            raise JobRefused("hosts", "give either a number of hosts or their names")
        cluster = self._cluster(ranks_per_host)
        reasons: tuple[str, ...]
        if on:
            chosen, reasons = self._named(on, cluster), ("its submitter chose the hosts",)
        else:
            decision = self._placement.place(cluster, Request(hosts))
            if not decision.is_placed:
                raise JobRefused("no_room", "; ".join(decision.reasons)[:400])
            chosen, reasons = tuple(self._topology.names[host] for host in decision.hosts), decision.reasons
        job = self._jobs[name] = Job(name, chosen, ranks_per_host, now_ns, reasons)
        job.switches = None if switches is None else tuple(switches)
        if known is not None:
            job.cancelled = known.cancelled
            self._counts.subtract(known.ranks.values())  # they are counted when they are reported again
        self._store.job(name, _data(job))
        return job

    def _replace(self, job: Job, on: Sequence[str], ranks_per_host: int, switches: Sequence[str]) -> Job:
        """Raises: JobRefused: nothing changes."""
        hosts = self._named(on, self._cluster(ranks_per_host, without=job.name))
        job.hosts, job.ranks_per_host, job.switches = hosts, ranks_per_host, tuple(switches)
        job.is_submitted, job.reasons = True, ("its submitter chose the hosts",)
        self._store.job(job.name, _data(job))
        return job

    def _cluster(self, ranks_per_host: int, without: str = "") -> Cluster:
        """The cluster in which hosts without room for ``ranks_per_host`` more ranks count as busy. ``without``: a job
        that takes no room."""
        taken: Counter[str] = Counter()
        for job in self._jobs.values():
            if job.state in ("waiting", "running") and job.name != without:
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
                raise JobRefused("unknown_host", f"the topology has no host named {host!r:.80}")
            if not cluster.is_free(numbers[host]):
                raise JobRefused("no_room", f"{host} has no room for its ranks")
        if len(set(on)) != len(on):
            raise JobRefused("hosts", "a host is named twice")
        return tuple(on)

    def cancel(self, name: str) -> Job:
        """Stop serving the job unless a new incarnation starts; a job that never ran is removed. Raises: JobRefused."""
        job = self.get(name)
        job.cancelled = job.incarnation
        job.switches = job.switches and ()  # no later incarnation may use what its submitter has released
        if job.incarnation:
            self._store.job(name, _data(job))
        else:
            del self._jobs[name]
            self._store.forget(name)
        return job

    # -- agents ---------------------------------------------------------------------------------------------------
    def is_cancelled(self, name: str, incarnation: int) -> bool:
        """Whether the incarnation is cancelled: its states are not passed on."""
        job = self._jobs.get(name)
        return job is not None and job.cancelled is not None and incarnation <= job.cancelled

    def runs_on(self, name: str, incarnation: int, host: str) -> bool:
        """Whether ``incarnation`` is the job's newest and has live ranks on the host."""
        job = self._jobs.get(name)
        return job is not None and job.incarnation == incarnation and host in job.ranks.values()

    def seen(
        self, host: str, states: Iterable[RankState], connected: Collection[str], now_ns: int
    ) -> tuple[list[RankState], list[str]]:
        """Process the rank states of a host. Returns: the accepted states, and the jobs with states refused because
        they belong to other hosts. An unknown job is admitted, because its ranks run, whatever placed them.
        ``connected``: hosts with a reachable agent."""
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
                job = self._jobs[state.job] = Job(
                    state.job, (), 0, now_ns, ("its ranks' reports revealed it",), is_submitted=False
                )
            kept.append(state)
            if state.incarnation < job.incarnation:
                continue
            if self._take(job, host, state):
                changed[job.name] = job
            job.ended_ns = None if job.ranks else (job.ended_ns or now_ns)
        self._write(changed.values())
        return kept, contested

    def _is_its(self, job: Job, state: RankState, host: str, connected: Collection[str]) -> bool:
        """Whether the host may report that rank of the job. It may not if the job was placed elsewhere, if another host
        has the rank, or if a new incarnation is reported for a job that lives on other hosts."""
        if job.is_submitted and job.state != "cancelled":
            if host not in job.hosts:
                return False
            if state.incarnation > job.incarnation:
                return True
        if state.incarnation < job.incarnation:
            return True  # has no effect
        if state.incarnation == job.incarnation:
            return job.ranks.get(state.rank, host) == host
        return not job.ranks or host in job.ranks.values() or not any(at in connected for at in job.ranks.values())

    def _take(self, job: Job, host: str, state: RankState) -> bool:
        """Apply the state to the job. True: the job must be stored."""
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
        """Discard the host's reports: its ranks are no longer known to live."""
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
        """Jobs that have ended for good; this call removes them. One with ``switches`` stays until it is cancelled, so
        that ranks which start again later do not use others."""
        found = [
            job.name for job in self._jobs.values()
            if job.ended_ns is not None and now_ns >= job.ended_ns + REST_NS
            and (job.switches is None or job.cancelled is not None)
        ]  # fmt: skip
        for name in found:
            self._counts.subtract(self._jobs[name].ranks.values())
            del self._jobs[name]
            self._store.forget(name)
        return tuple(found)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _may_be_replaced(job: Job, on: Sequence[str]) -> bool:
    """A job that was discovered belongs to the submitter that names all its hosts."""
    return job.switches is not None or (not job.is_submitted and set(job.hosts) <= set(on))


def _data(job: Job) -> dict[str, Any]:
    return {
        "name": job.name, "hosts": list(job.hosts), "ranks_per_host": job.ranks_per_host,
        "is_submitted": job.is_submitted, "reasons": list(job.reasons), "cancelled": job.cancelled,
        "incarnation": job.incarnation, "switches": None if job.switches is None else list(job.switches),
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
            switches = data.get("switches")
            if switches is not None and not _are_names(switches):
                return None  # without its restriction it might use switches that others have
            job.switches = None if switches is None else tuple(switches)
            return job
    return None
