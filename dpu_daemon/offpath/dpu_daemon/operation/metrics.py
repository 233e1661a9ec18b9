"""Builds the Prometheus metrics at each scrape, by Prometheus' conventions (seconds, bytes, ``_total``).

Labels are tenant, status, reason, state, stage, gpu, helper and cause. All are bounded by the configuration or the
code; none is a job, session or lease. `take` copies numbers in the daemon's event loop; another thread formats them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from offpath.dpu_daemon.durability import storing
from offpath.dpu_daemon.durability.journal import gauges
from offpath.dpu_daemon.operation.families import Buckets, build, gauge, histogram, process
from offpath.dpu_daemon.operation.metrics_http import Pages
from offpath.dpu_daemon.policy import plugins
from offpath.dpu_daemon.requests.probe import TESTS
from offpath.dpu_daemon.requests.request_stats import STAGES
from offpath.sched.jobs.states import LeaseState

if TYPE_CHECKING:
    from offpath.dpu_daemon.daemon import Daemon

PLAIN: Final[dict[str, tuple[str, str]]] = {
    "offpath_requests": ("requests", "Requests taken from a doorbell with a valid header."),
    "offpath_expired_running": ("expired_running", "Requests that expired during their kernel, which kept its lane."),
    "offpath_stream_answers": ("stream_answers", "Answers of streams, without the last ones."),
    "offpath_violations": ("violations", "Messages, doorbells and headers that violated the protocol."),
    "offpath_copied_bytes": ("dma_bytes", "Bytes the copy engine moved for requests and results."),
    "offpath_cpu_copied_bytes": (
        "cpu_copied_bytes",
        "Bytes of payloads and results that the daemon's CPU copied.",
    ),
    "offpath_header_read_bytes": ("header_bytes_read", "Bytes of request headers that the daemon's CPU read."),
    "offpath_answer_written_bytes": ("answer_bytes_written", "Bytes of answers that the daemon's CPU wrote."),
    "offpath_scrubbed_bytes": ("scrubbed_bytes", "Bytes of instance memory confirmed as zero."),
    "offpath_leases_opened": ("leases_opened", "Leases that the book ordered the helper to open."),
    "offpath_lanes_ready": ("lanes_ready", "Lanes whose workers became ready."),
    "offpath_leases_closed": ("leases_closed", "Leases that the book ordered the helper to close."),
    "offpath_restarts": ("restarts", "Processes that continued this lineage's journal after the first."),
    "offpath_connections_evicted": (
        "connections_evicted",
        "Unidentified connections closed to make room for others.",
    ),
    "offpath_descriptors_exhausted": (
        "descriptors_exhausted",
        "Connections not accepted because the process or the machine was out of descriptors or memory.",
    ),
    "offpath_spins": ("spins", "Times that the daemon polled for the next event before sleeping (datapath.spin_us)."),
    "offpath_spin_hits": ("spin_hits", "Times that such polling found an event."),
    "offpath_config_reloads": ("reloads", "Configurations applied by a reload."),
}
"""Counters without labels: metric → key of `Daemon.statistics`, help."""


@dataclass(slots=True)
class Snapshot:
    """Metric values at one moment, copied in the event loop."""

    counters: dict[str, int] = field(default_factory=dict)
    ends: dict[tuple[str, str, str], int] = field(default_factory=dict)
    jobs: dict[str, tuple[int, int]] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    held_share: dict[str, tuple[int, int]] = field(default_factory=dict)
    sequences: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    """Their number, the most, and how many ended because they were idle or lost."""
    paused_ns: dict[str, int] = field(default_factory=dict)
    leases: dict[tuple[str, str], int] = field(default_factory=dict)
    running_share: dict[str, int] = field(default_factory=dict)
    emulated: dict[str, bool] = field(default_factory=dict)
    helpers: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Generation, leases and lost GPUs."""
    latency: dict[str, Buckets] = field(default_factory=dict)
    stages: dict[str, Buckets] = field(default_factory=dict)
    lag_s: float = 0.0
    uptime_s: float = 0.0
    has_helper: bool = False
    is_draining: bool = False
    is_last_good: bool = False
    lineage: str = ""
    extra: dict[str, tuple[str, float]] = field(
        default_factory=lambda: {
            name: (text, 0.0) for name, text in (gauges.NAMES | plugins.NAMES | storing.NAMES).items()
        }
    )


Extra = dict[str, tuple[str, Callable[[], float]]]
"""Additional metrics: name → (help, function that returns the value). A name ending in ``_total`` is a counter."""


def take(daemon: Daemon, lag_s: float, uptime_s: float) -> Snapshot:
    """Copy the numbers. Runs in the event loop; the cost grows with tenants and leases, never with jobs."""
    ledger = daemon.requests.book.ledger
    stats = daemon.requests.answers.stats
    leases: Counter[tuple[str, str]] = Counter()
    running = {gpu.gpu: 0 for gpu in daemon.requests.book.leasing.gpus}
    for lease in ledger.leases.values():
        for gpu in lease.view.gpus:
            leases[gpu, lease.state.value] += 1
            running[gpu] = running.get(gpu, 0) + lease.running_share // len(lease.view.gpus)
    tenants = ledger.tenants.values()
    return Snapshot(
        counters=daemon.statistics(),
        ends={(tenant, s.name.lower(), r.name.lower()): n for (tenant, s, r), n in stats.ends().items()},
        jobs={tenant.spec.name: (tenant.jobs, tenant.backlog) for tenant in tenants},
        sessions=dict(Counter(session.tenant for session in ledger.sessions.values())),
        held_share={tenant.spec.name: (tenant.held_share, tenant.spec.max_share) for tenant in tenants},
        sequences={
            each.spec.name: (each.sequences, each.spec.max_sequences, each.idle_sequences, each.lost_sequences)
            for each in tenants
        },
        paused_ns={tenant: turns.paused_ns for tenant, turns in daemon.requests.pacing.turns.items()},
        leases=dict(leases),
        running_share=running,
        emulated={gpu: each for gpu, each in daemon.host.emulated().items() if gpu in running},
        helpers={
            helper.name: (number, len(daemon.host.lanes.leases_of(number)), len(ledger.helpers.lost_gpus(number)))
            for helper in daemon.host.joined()
            for number in (helper.number,)
        },
        latency={tenant: (h.counts(), h.sum_ns) for tenant, h in stats.latency.items()},
        stages={stage: (h.counts(), h.sum_ns) for stage, h in zip(STAGES, stats.stages, strict=True)},
        lag_s=lag_s,
        uptime_s=uptime_s,
        has_helper=daemon.host.has_helper(),
        is_draining=daemon.is_draining,
        is_last_good=daemon.settings.is_last_good,
        lineage=daemon.identity.lineage,
        extra={name: (text, value()) for name, (text, value) in daemon.metrics.items()},
    )


def pages(daemon: Daemon) -> Pages[Snapshot]:
    """What the daemon's pages show. Call it when the daemon starts: its uptime begins."""
    now_ns = daemon.requests.now_ns
    started_ns = now_ns()
    return Pages(
        take=lambda lag_s: take(daemon, lag_s, (now_ns() - started_ns) / 1e9), families=families, idle=Snapshot(),
        tests=TESTS, check=daemon.requests.probe.run, exhausted=lambda: daemon.count("descriptors_exhausted"),
    )  # fmt: skip


def families(now: Snapshot) -> Iterator[Metric]:
    """Every metric, including those without samples: the test of alerts and dashboard reads the names here."""
    yield build("Release of the daemon.")
    yield gauge("offpath_uptime_seconds", "Time since this process took its first event.", now.uptime_s)
    yield gauge("offpath_helper_joined", "1 while a helper has joined.", now.has_helper)
    yield gauge("offpath_draining", "1 while draining: nothing new is accepted.", now.is_draining)
    yield gauge("offpath_config_last_good", "1 while the sources of the configuration are refused.", now.is_last_good)
    yield gauge(
        "offpath_loop_lag_seconds", "Longest delay of a timer of the event loop since the last scrape.", now.lag_s
    )
    for name, (key, text) in PLAIN.items():
        yield CounterMetricFamily(name, text, value=now.counters.get(key, 0))
    load_s = now.counters.get("load_ms", 0) / 1e3
    yield CounterMetricFamily("offpath_lane_load_seconds", "Time in which workers loaded models.", value=load_s)
    yield _answers(now)
    yield _paused(now)
    yield from _levels(now)
    yield from _sequences(now)
    yield histogram(
        "offpath_request_duration_seconds", "Acceptance to answer of completed requests.", "tenant", now.latency
    )
    yield histogram("offpath_stage_duration_seconds", "Stages of completed requests.", "stage", now.stages)
    yield from process()
    for name, (text, value) in now.extra.items():
        if name.endswith("_total"):
            yield CounterMetricFamily(name, text, value=value)
        else:
            yield gauge(name, text, value)


def _answers(now: Snapshot) -> Metric:
    answers = CounterMetricFamily(
        "offpath_answers", "Terminal answers; reason none is success.", labels=["tenant", "status", "reason"]
    )
    for labels, count in now.ends.items():
        answers.add_metric(list(labels), count)
    return answers


def _paused(now: Snapshot) -> Metric:
    paused = CounterMetricFamily(
        "offpath_tenant_paused_seconds",
        "Time in which a tenant's doorbells were not read: it was over its share of the event loop.",
        labels=["tenant"],
    )
    for tenant, paused_ns in now.paused_ns.items():
        paused.add_metric([tenant], paused_ns / 1e9)
    return paused


def _sequences(now: Snapshot) -> Iterator[Metric]:
    count = GaugeMetricFamily("offpath_sequences", "Sequences that have not ended.", labels=["tenant"])
    most = GaugeMetricFamily("offpath_max_sequences", "Sequences that a tenant may have.", labels=["tenant"])
    ended = CounterMetricFamily(
        "offpath_sequences_ended", "Sequences that ended because they were idle or lost.", labels=["tenant", "cause"]
    )
    for tenant, (number, limit, idle, lost) in now.sequences.items():
        count.add_metric([tenant], number)
        most.add_metric([tenant], limit)
        ended.add_metric([tenant, "idle"], idle)
        ended.add_metric([tenant, "lost"], lost)
    return iter((count, most, ended))


def _levels(now: Snapshot) -> Iterator[Metric]:
    unanswered = GaugeMetricFamily(
        "offpath_requests_unanswered", "Requests accepted and not answered.", labels=["tenant"]
    )
    queued = GaugeMetricFamily(
        "offpath_requests_queued", "Unanswered requests that are not on a lane yet.", labels=["tenant"]
    )
    for tenant, (jobs, waiting) in now.jobs.items():
        unanswered.add_metric([tenant], jobs)
        queued.add_metric([tenant], waiting)
    sessions = GaugeMetricFamily("offpath_sessions", "Open sessions.", labels=["tenant"])
    held = GaugeMetricFamily("offpath_held_share_ratio", "Sum of the leases' shares, in GPUs.", labels=["tenant"])
    most = GaugeMetricFamily("offpath_max_share_ratio", "Share that a tenant may hold, in GPUs.", labels=["tenant"])
    for tenant, (share, limit) in now.held_share.items():
        sessions.add_metric([tenant], now.sessions.get(tenant, 0))
        held.add_metric([tenant], share / 100)
        most.add_metric([tenant], limit / 100)
    leases = GaugeMetricFamily("offpath_leases", "Leases by state.", labels=["gpu", "state"])
    running = GaugeMetricFamily("offpath_running_share_ratio", "Share of the GPU that kernels use.", labels=["gpu"])
    for gpu, share in now.running_share.items():
        running.add_metric([gpu], share / 100)
        for state in LeaseState:
            if state is not LeaseState.FREE:
                leases.add_metric([gpu, state.value], now.leases.get((gpu, state.value), 0))
    emulated = GaugeMetricFamily(
        "offpath_gpu_emulated", "1 for an emulated GPU: the host's CPU computes.", labels=["gpu"]
    )
    for gpu, is_emulated in now.emulated.items():
        emulated.add_metric([gpu], float(is_emulated))
    generation = GaugeMetricFamily(
        "offpath_helper_generation", "Generation of a helper that has joined; it rises with each join.",
        labels=["helper"],
    )  # fmt: skip
    by_helper = GaugeMetricFamily("offpath_helper_leases", "Leases on a helper's GPUs.", labels=["helper"])
    lost = GaugeMetricFamily("offpath_helper_lost_gpus", "GPUs of a helper that need a reset.", labels=["helper"])
    for name, (number, count, lost_gpus) in now.helpers.items():
        generation.add_metric([name], number)
        by_helper.add_metric([name], count)
        lost.add_metric([name], lost_gpus)
    return iter((unanswered, queued, sessions, held, most, leases, running, emulated, generation, by_helper, lost))
