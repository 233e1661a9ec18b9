"""Statistics of a tenant's models in the form of the protocol's extension: counts and sums of durations.

Requests that share a launch are one execution, as in Triton. Their answers have the number of the launch, by which the
first of them is known.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from offpath.host_helper.gateway.models import Model
from offpath.host_helper.slots import Result

_RECENT: Final = 1024
"""Launches whose first answer is remembered. A tenant has no more requests at the daemon at once (`TenantTable.slots`),
and the answers of a launch come together."""


@dataclass(slots=True)
class _Sum:
    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns

    def shown(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


@dataclass(slots=True)
class _Executions:
    """Those of one size of batch."""

    input: _Sum = field(default_factory=_Sum)
    infer: _Sum = field(default_factory=_Sum)
    output: _Sum = field(default_factory=_Sum)

    def shown(self, size: int) -> dict[str, Any]:
        return {
            "batch_size": size, "compute_input": self.input.shown(), "compute_infer": self.infer.shown(),
            "compute_output": self.output.shown(),
        }  # fmt: skip


@dataclass(slots=True)
class _Counts:
    last_ms: int = 0
    inferences: int = 0
    by_size: dict[int, _Executions] = field(default_factory=dict)
    """At most one for each number of rows that a launch has."""
    success: _Sum = field(default_factory=_Sum)
    fail: _Sum = field(default_factory=_Sum)
    queue: _Sum = field(default_factory=_Sum)
    compute_input: _Sum = field(default_factory=_Sum)
    compute_infer: _Sum = field(default_factory=_Sum)
    compute_output: _Sum = field(default_factory=_Sum)


class Statistics:
    """By model and version; those that are no longer served are forgotten with `keep`."""

    def __init__(self) -> None:
        self._by_model: dict[tuple[str, int], _Counts] = {}
        self._recent: dict[int, None] = {}
        """Numbers of launches."""

    def succeeded(self, model: Model, rows: int, result: Result, total_ns: int) -> None:
        """``rows``: of the request, at least 1. ``total_ns``: in the gateway, from the whole request to the whole
        answer."""
        counts, stages = self._of(model), result.stages
        counts.last_ms = time.time_ns() // 1_000_000
        each = 1 if model.batching is not None else rows  # without a batch dimension a request is one inference
        counts.inferences += rows // each
        output_ns = max(stages.total - stages.queued - stages.copy - stages.kernel, 0)
        if self._is_first(result.batch):
            executions = counts.by_size.setdefault(max(result.batch_rows, rows) // each, _Executions())
            executions.input.add(stages.copy)
            executions.infer.add(stages.kernel)
            executions.output.add(output_ns)
        counts.success.add(total_ns)
        counts.queue.add(stages.queued)
        counts.compute_input.add(stages.copy)
        counts.compute_infer.add(stages.kernel)
        counts.compute_output.add(output_ns)

    def _is_first(self, launch: int) -> bool:
        """Whether no answer of the launch has come before. 0: the request had it for itself."""
        if not launch:
            return True
        if launch in self._recent:
            return False
        self._recent[launch] = None
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        return True

    def failed(self, model: Model, total_ns: int) -> None:
        """Any other end."""
        self._of(model).fail.add(total_ns)

    def keep(self, models: list[Model]) -> None:
        """Forget all but these."""
        served = {(model.name, model.version) for model in models}
        self._by_model = {key: counts for key, counts in self._by_model.items() if key in served}

    def shown(self, models: list[Model]) -> dict[str, Any]:
        """The answer of ``GET /v2/models/…/stats``."""
        return {"model_stats": [self._shown(model) for model in models]}

    def _of(self, model: Model) -> _Counts:
        return self._by_model.setdefault((model.name, model.version), _Counts())

    def _shown(self, model: Model) -> dict[str, Any]:
        counts = self._of(model)
        nothing = {"count": 0, "ns": 0}
        return {
            "name": model.name, "version": str(model.version), "last_inference": counts.last_ms,
            "inference_count": counts.inferences,
            "execution_count": sum(each.infer.count for each in counts.by_size.values()),
            "inference_stats": {
                "success": counts.success.shown(), "fail": counts.fail.shown(), "queue": counts.queue.shown(),
                "compute_input": counts.compute_input.shown(), "compute_infer": counts.compute_infer.shown(),
                "compute_output": counts.compute_output.shown(), "cache_hit": nothing, "cache_miss": nothing,
            },
            "response_stats": {}, "memory_usage": [],
            "batch_stats": [counts.by_size[size].shown(size) for size in sorted(counts.by_size)],
        }  # fmt: skip
