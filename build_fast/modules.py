"""Which modules the fast build compiles: what every request passes, where compiling saves the daemon 5 % or more
(docs/measurements.md). Not compiled: the journal, `dpu_daemon.hosts` and `bindings` (less than that), modules that a
request does not pass, and those that need Python's own classes: weak references, ctypes, pydantic.
"""

from __future__ import annotations

from typing import Final

COMPILED: Final[tuple[str, ...]] = (
    "offpath.sched.jobs.admission",
    "offpath.sched.jobs.book",
    "offpath.sched.jobs.commands",
    "offpath.sched.jobs.demands",
    "offpath.sched.jobs.events",
    "offpath.sched.jobs.forecast",
    "offpath.sched.jobs.leasing",
    "offpath.sched.jobs.ledger",
    "offpath.sched.jobs.limits",
    "offpath.sched.jobs.records",
    "offpath.sched.jobs.service",
    "offpath.sched.jobs.settings",
    "offpath.sched.jobs.states",
    "offpath.sched.jobs.timers",
    "offpath.sched.gpu.baselines",
    "offpath.sched.gpu.conspirator",
    "offpath.sched.gpu.firstfit",
    "offpath.sched.gpu.geometry",
    "offpath.sched.gpu.greedy",
    "offpath.sched.gpu.indexed",
    "offpath.sched.gpu.oldest_gpu_first",
    "offpath.sched.gpu.plugin",
    "offpath.sched.gpu.policy",
    "offpath.sched.gpu.rooms",
    "offpath.sched.loop_share",
    "offpath.dpu_daemon.requests.answers",
    "offpath.dpu_daemon.requests.book_loop",
    "offpath.dpu_daemon.requests.codes",
    "offpath.dpu_daemon.requests.copies",
    "offpath.dpu_daemon.requests.histogram",
    "offpath.dpu_daemon.requests.inflight",
    "offpath.dpu_daemon.requests.pacing",
    "offpath.dpu_daemon.requests.request_stats",
    "offpath.dpu_daemon.requests.session_table",
    "offpath.dpu_daemon.requests.sessions",
    "offpath.dpu_daemon.requests.spinner",
)
DERIVED: Final[frozenset[str]] = frozenset(
    {
        "offpath.sched.gpu.policy.Policy",
        "offpath.sched.gpu.indexed.IndexedPolicy",
        "offpath.sched.gpu.baselines.BestFit",
        "offpath.sched.gpu.baselines.FirstFitPolicy",
        "offpath.sched.gpu.conspirator.ConspiratorPaper",
        "offpath.sched.gpu.oldest_gpu_first.OldestGpuFirst",
    }
)
"""Compiled classes that a policy plug-in, which is not compiled, may derive from (docs/plugins.md)."""
PORTIONS: Final[dict[str, str]] = {
    "bindings": "bindings",
    "dpu_daemon": "dpu_daemon",
    "host_helper": "host_helper",
    "sched": "sched",
    "scripts": "cli",
}
"""Role folder → the portion of the namespace `offpath` in it."""


def source_of(module: str) -> str:
    """The module's path below the namespace, such as ``offpath/sched/jobs/book.py``."""
    return module.replace(".", "/") + ".py"
