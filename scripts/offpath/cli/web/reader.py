"""Polls the admin sockets of daemon, controller and job manager. Each list has a bound.

One reader serves all browsers. It waits so long between two polls that the daemon spends at most `SHARE` of a core on
them: the time from request to reply is an upper bound of the daemon's processor time.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from pydantic import BaseModel

from offpath.bindings.errors import OffpathError
from offpath.bindings.runtime import runtime_directory
from offpath.bindings.wire import admin, ina_admin, work_admin
from offpath.cli import admin_client, controller_client, manager_client
from offpath.cli.controller_client import pages

SHARE: Final = 0.01
LONGEST_S: Final = 10.0
MOST_LEASES: Final = 4096
MOST_TENANTS: Final = 1024
MOST_JOBS: Final = 128
MOST_ENDED: Final = 64
MOST_OTHERS: Final = 256
"""Lines of each list of controller and job manager."""
_PAGES_OF_ENDED: Final = 4
_T = TypeVar("_T")
_R = TypeVar("_R", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class DaemonSeen:
    """The daemon's part of a poll. ``is_cut``: there are more leases or tenants than the bound."""

    status: admin.Status
    tenants: list[admin.TenantLine]
    leases: list[admin.LeaseLine]
    jobs: list[admin.JobLine]
    ended: list[admin.JobLine]
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class ControllerSeen:
    """The controller's part of a poll."""

    status: ina_admin.ControllerStatus
    jobs: list[ina_admin.InaJobLine]
    groups: list[ina_admin.GroupLine]
    trees: list[ina_admin.TreeLine]
    holds: list[ina_admin.HoldLine]


@dataclass(frozen=True, slots=True)
class ManagerSeen:
    """The job manager's part of a poll."""

    status: work_admin.Status
    jobs: list[work_admin.JobLine]


@dataclass(frozen=True, slots=True)
class Seen:
    """One poll. ``faults``: why a service that is expected did not answer, by its name. ``waited_s``: time from
    requests to replies of the daemon."""

    daemon: DaemonSeen | None = None
    controller: ControllerSeen | None = None
    manager: ManagerSeen | None = None
    faults: dict[str, str] = field(default_factory=dict)
    waited_s: float = 0.0


class Source(Protocol):
    """What the page shows. Calls block: the app runs them in a thread, one at a time."""

    def read(self) -> Seen:
        """Poll once. Raises neither `OffpathError` nor `OSError`: `Seen.faults` has the reason."""

    def explain(self, identity: dict[str, int]) -> admin.Explanation:
        """Explain a request. Raises: Refused: there is none. DaemonUnreachable, NotPermitted."""

    def explain_job(self, name: str) -> ina_admin.InaExplanation:
        """Explain a training job. Raises: as `explain`."""


def pause_s(waited_s: float, interval_s: float) -> float:
    """Time until the next poll, after one that waited so long for the daemon.

    >>> pause_s(0.004, 1.0), pause_s(0.05, 1.0), pause_s(3.0, 1.0)
    (1.0, 5.0, 10.0)
    """
    return max(interval_s, min(waited_s / SHARE, LONGEST_S))


class Reader:
    """Reads from the sockets in a runtime directory. Controller and job manager are read where their sockets exist.

    Raises: RegionError: this user has no runtime directory.
    """

    def __init__(
        self, runtime_dir: str | None = None, *, has_daemon: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        runtime_directory(runtime_dir)
        self._runtime_dir = runtime_dir
        self._has_daemon = has_daemon
        self._clock = clock
        self._waited_s = 0.0
        self._lineage = ""
        self._last_ended = 0
        self._ended: deque[tuple[admin.JobLine, float]] = deque(maxlen=MOST_ENDED)
        """With the time at which it was read: its age then counts on."""

    def read(self) -> Seen:
        """Poll once."""
        self._waited_s = 0.0
        faults: dict[str, str] = {}
        daemon = self._part("daemon", self._daemon, faults) if self._has_daemon else None
        controller = self._part("controller", self._controller, faults)
        manager = self._part("job manager", self._manager, faults)
        return Seen(daemon, controller, manager, faults, self._waited_s)

    @staticmethod
    def _part(name: str, read: Callable[[], _T | None], faults: dict[str, str]) -> _T | None:
        try:
            return read()
        except (OffpathError, OSError) as fault:
            faults[name] = str(fault)[:400]
            return None

    # -- daemon ---------------------------------------------------------------------------------------------------
    def _daemon(self) -> DaemonSeen:
        # A new connection each time: the daemon closes idle ones.
        with admin_client.AdminClient(self._runtime_dir) as client:

            def query(request: BaseModel, wanted: type[_R]) -> _R:
                began = self._clock()
                try:
                    return client.query(request, wanted)
                finally:
                    self._waited_s += self._clock() - began

            status = query(admin.StatusRequest(), admin.Status)
            tenants = _listed(
                pages(lambda after: query(admin.StatisticsRequest(after=after), admin.Statistics), ""),
                lambda page: page.tenants, MOST_TENANTS,
            )  # fmt: skip
            leases = _listed(
                pages(lambda after: query(admin.LeasesRequest(after=after), admin.Leases), 0),
                lambda page: page.leases, MOST_LEASES,
            )  # fmt: skip
            jobs = _listed(
                pages(lambda after: query(admin.JobsRequest(after=after), admin.Jobs), 0),
                lambda page: page.jobs, MOST_JOBS,
            )  # fmt: skip
            self._read_ended(status.lineage, query)
        is_cut = len(tenants) < status.tenants or len(leases) < status.leases
        now_s = self._clock()
        ended = [
            line.model_copy(update={"age_ms": line.age_ms + (now_s - read_s) * 1e3}) for line, read_s in self._ended
        ]
        return DaemonSeen(status, tenants, leases, jobs, ended, is_cut)

    def _read_ended(self, lineage: str, query: Callable[[BaseModel, type[admin.Jobs]], admin.Jobs]) -> None:
        """Only those with a greater number than the last one that was read."""
        if lineage != self._lineage:
            self._lineage, self._last_ended = lineage, 0
            self._ended.clear()
        for _ in range(_PAGES_OF_ENDED):
            page = query(admin.JobsRequest(state="ended", after=self._last_ended), admin.Jobs)
            read_s = self._clock()
            self._ended.extend((line, read_s) for line in page.jobs)
            if page.jobs:
                self._last_ended = page.jobs[-1].job
            if not page.next:
                return

    def explain(self, identity: dict[str, int]) -> admin.Explanation:
        """Explain a request."""
        with admin_client.AdminClient(self._runtime_dir) as client:
            return client.query(admin.ExplainRequest(**identity), admin.Explanation)

    # -- controller and job manager -----------------------------------------------------------------------------------
    def _controller(self) -> ControllerSeen | None:
        if not controller_client.is_here(self._runtime_dir):
            return None
        with controller_client.client(self._runtime_dir) as client:
            status = client.query(ina_admin.StatusRequest(), ina_admin.ControllerStatus)
            jobs = _listed(
                pages(lambda after: client.query(ina_admin.JobsRequest(after=after), ina_admin.InaJobs), ""),
                lambda page: page.jobs, MOST_OTHERS,
            )  # fmt: skip
            groups = _listed(
                pages(lambda after: client.query(ina_admin.GroupsRequest(after=after), ina_admin.Groups), 0),
                lambda page: page.groups, MOST_OTHERS,
            )  # fmt: skip
            trees = _listed(
                pages(lambda after: client.query(ina_admin.TreesRequest(after=after), ina_admin.TreeLines), 0),
                lambda page: page.trees, MOST_OTHERS,
            )  # fmt: skip
            holds = _listed(
                pages(lambda after: client.query(ina_admin.HoldsRequest(after=after), ina_admin.Holds), 0),
                lambda page: page.holds, MOST_OTHERS,
            )  # fmt: skip
        return ControllerSeen(status, jobs, groups, trees, holds)

    def explain_job(self, name: str) -> ina_admin.InaExplanation:
        """Explain a training job."""
        request = admin_client.request(ina_admin.ExplainRequest, job=name)
        with controller_client.client(self._runtime_dir) as client:
            return client.query(request, ina_admin.InaExplanation)

    def _manager(self) -> ManagerSeen | None:
        if not manager_client.is_here(self._runtime_dir):
            return None
        with manager_client.client(self._runtime_dir) as client:
            status = client.query(work_admin.StatusRequest(), work_admin.Status)
            jobs = _listed(
                pages(lambda after: client.query(work_admin.ListRequest(after=after), work_admin.JobLines), 0),
                lambda page: page.jobs, MOST_OTHERS,
            )  # fmt: skip
        return ManagerSeen(status, jobs)


def _listed(found: Iterator[Any], lines: Callable[[Any], Iterable[_T]], most: int) -> list[_T]:
    """The first ``most`` lines; no page more is requested than they need."""
    return list(itertools.islice(itertools.chain.from_iterable(map(lines, found)), most))
