"""Polls the admin sockets of daemon, controller and job manager. Each list has a bound.

One reader serves all browsers. It waits so long between two polls that the daemon spends at most `SHARE` of a core on
them: the time from request to reply is an upper bound of the daemon's processor time.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
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
_T = TypeVar("_T")
_R = TypeVar("_R", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class DaemonSeen:
    """The daemon's part of a poll. ``ended``: the last ended one first. ``cut``: lists, by their names here, that have
    more lines than were read."""

    status: admin.Status
    tenants: list[admin.TenantLine]
    leases: list[admin.LeaseLine]
    jobs: list[admin.JobLine]
    ended: list[admin.JobLine]
    cut: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ControllerSeen:
    """The controller's part of a poll. ``cut``: as in `DaemonSeen`."""

    status: ina_admin.ControllerStatus
    jobs: list[ina_admin.InaJobLine]
    groups: list[ina_admin.GroupLine]
    trees: list[ina_admin.TreeLine]
    holds: list[ina_admin.HoldLine]
    cut: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ManagerSeen:
    """The job manager's part of a poll. ``cut``: as in `DaemonSeen`."""

    status: work_admin.Status
    jobs: list[work_admin.JobLine]
    cut: frozenset[str] = frozenset()


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
        """Explain a request. Raises: Refused: there is none. OffpathError: the identity is out of its range.
        DaemonUnreachable, DaemonNotTrusted, NotPermitted."""

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

            lists = _Lists(query)
            status = query(admin.StatusRequest(), admin.Status)
            tenants = lists.read("tenants", admin.StatisticsRequest, admin.Statistics, MOST_TENANTS, "")
            leases = lists.read("leases", admin.LeasesRequest, admin.Leases, MOST_LEASES)
            jobs = lists.read("jobs", admin.JobsRequest, admin.Jobs, MOST_JOBS)
            ended = query(admin.EndedRequest(limit=MOST_ENDED), admin.Jobs).jobs
        return DaemonSeen(status, tenants, leases, jobs, ended, frozenset(lists.cut))

    def explain(self, identity: dict[str, int]) -> admin.Explanation:
        """Explain a request."""
        with admin_client.AdminClient(self._runtime_dir) as client:
            return client.query(admin_client.request(admin.ExplainRequest, **identity), admin.Explanation)

    # -- controller and job manager -----------------------------------------------------------------------------------
    def _controller(self) -> ControllerSeen | None:
        if not controller_client.is_here(self._runtime_dir):
            return None
        with controller_client.client(self._runtime_dir) as client:
            lists = _Lists(client.query)
            status = client.query(ina_admin.StatusRequest(), ina_admin.ControllerStatus)
            jobs = lists.read("jobs", ina_admin.JobsRequest, ina_admin.InaJobs, MOST_OTHERS, "")
            groups = lists.read("groups", ina_admin.GroupsRequest, ina_admin.Groups, MOST_OTHERS)
            trees = lists.read("trees", ina_admin.TreesRequest, ina_admin.TreeLines, MOST_OTHERS)
            holds = lists.read("holds", ina_admin.HoldsRequest, ina_admin.Holds, MOST_OTHERS)
        return ControllerSeen(status, jobs, groups, trees, holds, frozenset(lists.cut))

    def explain_job(self, name: str) -> ina_admin.InaExplanation:
        """Explain a training job."""
        request = admin_client.request(ina_admin.ExplainRequest, job=name)
        with controller_client.client(self._runtime_dir) as client:
            return client.query(request, ina_admin.InaExplanation)

    def _manager(self) -> ManagerSeen | None:
        if not manager_client.is_here(self._runtime_dir):
            return None
        with manager_client.client(self._runtime_dir) as client:
            lists = _Lists(client.query)
            status = client.query(work_admin.StatusRequest(), work_admin.Status)
            jobs = lists.read("jobs", work_admin.ListRequest, work_admin.JobLines, MOST_OTHERS)
        return ManagerSeen(status, jobs, frozenset(lists.cut))


class _Lists:
    """Reads lists page by page. ``cut``: those with more lines than their bounds."""

    def __init__(self, query: Callable[[BaseModel, type[Any]], Any]) -> None:
        self._query = query
        self.cut: list[str] = []

    def read(
        self, name: str, request: Callable[..., BaseModel], page: type[BaseModel], most: int, first: int | str = 0
    ) -> list[Any]:
        """The first ``most`` lines of the field ``name`` of the pages. It requests only pages that it needs for them,
        and to know whether there is one more."""
        found = pages(lambda after: self._query(request(after=after), page), first)
        lines = itertools.chain.from_iterable(getattr(each, name) for each in found)
        kept = list(itertools.islice(lines, most))
        if next(lines, None) is not None:
            self.cut.append(name)
        return kept
