"""The controller's metrics and health, as the daemon has them: copied in the event loop, formatted in another thread.

Labels are outcome, code, tenant, state and end. Tenants are users that the configuration admits, `counts.MOST_TENANTS`
at most; the others are bounded by the program. None is a device, a job or a lease.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from offpath.dpu_daemon.collab.running import Running
from offpath.dpu_daemon.listening.checkup import Checkup
from offpath.dpu_daemon.operation.families import Buckets, build, gauge, histogram, process
from offpath.dpu_daemon.operation.metrics_http import Pages
from offpath.dpu_daemon.requests.histogram import Histogram
from offpath.sched.collab.records import RoundEnd

TESTS: Final = ("loop", "file")
_KEPT: Final = 64
"""Checkups that wait for one write at a time: a disk that stands still must not gather them."""


@dataclass(slots=True)
class Snapshot:
    """Values at one moment."""

    check_ins: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    leases_ended: dict[str, int] = field(default_factory=dict)
    rounds: dict[tuple[str, RoundEnd], int] = field(default_factory=dict)
    jobs: dict[tuple[str, str], int] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)
    answer_times: Buckets = field(default_factory=lambda: (Histogram().counts(), 0))
    plain: dict[str, float] = field(default_factory=dict)


PLAIN: Final[dict[str, str]] = {
    "offpath_collab_uptime_seconds": "Time since the controller's start.",
    "offpath_collab_loop_lag_seconds": "Longest delay of a timer of the event loop since the last scrape.",
    "offpath_collab_devices_known": "Devices whose last message is remembered (devices.remembered bounds them).",
    "offpath_collab_devices_forgotten_total": "Devices forgotten for others.",
    "offpath_collab_devices_worked": "Devices that got a job in this period.",
    "offpath_collab_connections": "Open connections of devices and gateways.",
    "offpath_collab_connections_evicted_total": "Connections of devices closed to make room for others.",
    "offpath_collab_commits_total": "Writes to the state file.",
    "offpath_collab_epsilon": "Fairness between jobs (policy.epsilon).",
    "offpath_collab_config_reloads_total": "Configurations applied by a reload.",
    "offpath_collab_config_reloads_refused_total": "Reloads refused; the configuration in force stayed.",
    "offpath_collab_descriptors_exhausted_total": (
        "Connections not accepted because the process or the machine was out of descriptors or memory. Those of "
        "gateways do not count: libzmq accepts them."
    ),
}
"""Metrics without labels: those that end in ``_total`` are counters."""


def take(running: Running, lag_s: float) -> Snapshot:
    """Copy the numbers. The cost grows with open jobs, never with devices."""
    shell = running.shell
    tally, counts = shell.book.tally, shell.counts
    jobs, wanted, leases = Counter[tuple[str, str]](), Counter[str](), Counter[str]()
    for job in shell.book.jobs.values():
        tenant = counts.label(job.spec.tenant)
        jobs[tenant, job.state] += 1
        if job.request is not None:
            wanted[tenant] += job.request.remaining
            leases[tenant] += job.request.leased
    held = tally.check_ins - tally.assigned - tally.idle - tally.spent
    recent, http = running.devices.recent, running.http
    values = (
        (shell.now_ns() - shell.started_ns) / 1e9, lag_s, recent.known, recent.forgotten, shell.book.worked,
        running.connections, http.evicted if http is not None else 0, shell.commits, shell.config.policy.epsilon,
        counts.reloads, counts.reloads_refused, counts.descriptors_exhausted,
    )  # fmt: skip
    return Snapshot(
        check_ins={"assigned": tally.assigned, "idle": tally.idle, "spent": tally.spent, "held": held},
        refused=dict(shell.refused), leases_ended={"answered": counts.answered, "unanswered": counts.unanswered},
        rounds=dict(counts.rounds), jobs=dict(jobs), wanted=dict(wanted), leases=dict(leases),
        answer_times=(counts.answer_times.counts(), counts.answer_times.sum_ns),
        plain=dict(zip(PLAIN, values, strict=True)),
    )  # fmt: skip


def families(now: Snapshot) -> Iterator[Metric]:
    """Every metric, including those without samples."""
    yield build("Release of the controller.")
    for name, text in PLAIN.items():
        value = now.plain.get(name, 0)
        yield CounterMetricFamily(name, text, value=value) if name.endswith("_total") else gauge(name, text, value)
    check_ins = "Check-ins by outcome: held is a device that had a lease, spent one that has worked in this period."
    yield _counter("offpath_collab_check_ins", check_ins, "outcome", now.check_ins)
    yield _counter("offpath_collab_refused", "Messages of devices that were refused.", "code", now.refused)
    yield _counter("offpath_collab_leases_ended", "Leases that ended, by outcome.", "outcome", now.leases_ended)
    rounds = CounterMetricFamily("offpath_collab_rounds", "Rounds that ended.", labels=["tenant", "end"])
    for (tenant, end), count in now.rounds.items():
        rounds.add_metric([tenant, str(end)], count)
    yield rounds
    jobs = GaugeMetricFamily("offpath_collab_jobs", "Open jobs by state.", labels=["tenant", "state"])
    for labels, count in now.jobs.items():
        jobs.add_metric(list(labels), count)
    yield jobs
    yield _levels("offpath_collab_devices_wanted", "Devices that rounds wait for.", now.wanted)
    yield _levels("offpath_collab_leases", "Devices that work now.", now.leases)
    text = "From a device's message to its answer, with the wait for the disk."
    yield histogram("offpath_collab_answer_duration_seconds", text, "", {"": now.answer_times})
    yield from process()


def _counter(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family


def _levels(name: str, text: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["tenant"])
    for tenant, count in values.items():
        family.add_metric([tenant], count)
    return family


class Health:
    """Tests that the loop runs and that answers which wait for the disk get it."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._waiting: deque[Checkup] = deque(maxlen=_KEPT)
        self._is_pending = False

    def check(self, checkup: Checkup) -> None:
        """Start the tests, in the loop."""
        checkup.checks["loop"] = "ok"
        checkup.is_accepting = self._running.is_open
        checkup.why_not_ready = "" if checkup.is_accepting else "it begins or ends"
        self._waiting.append(checkup)
        if not self._is_pending:
            self._is_pending = True
            self._running.shell.when_durable(self._durable)

    def _durable(self) -> None:
        self._is_pending = False
        while self._waiting:
            checkup = self._waiting.popleft()
            checkup.checks["file"] = "ok"
            checkup.finish()


def pages(running: Running) -> Pages[Snapshot]:
    """What the controller's pages show."""
    return Pages(
        take=lambda lag_s: take(running, lag_s), families=families, idle=Snapshot(), tests=TESTS,
        check=Health(running).check, exhausted=running.shell.counts.exhausted,
    )  # fmt: skip
