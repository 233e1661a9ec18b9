"""Statistics of a tenant's models in the form of the protocol's extension: counts and sums of durations."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from offpath.bindings.wire.header import Stages
from offpath.host_helper.gateway.models import Model


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
class _Counts:
    last_ms: int = 0
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

    def succeeded(self, model: Model, stages: Stages, total_ns: int) -> None:
        """``total_ns``: in the gateway, from the whole request to the whole answer."""
        counts = self._of(model)
        counts.last_ms = time.time_ns() // 1_000_000
        counts.success.add(total_ns)
        counts.queue.add(stages.queued)
        counts.compute_input.add(stages.copy)
        counts.compute_infer.add(stages.kernel)
        counts.compute_output.add(max(stages.total - stages.queued - stages.copy - stages.kernel, 0))

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
            "inference_count": counts.success.count, "execution_count": counts.success.count,
            "inference_stats": {
                "success": counts.success.shown(), "fail": counts.fail.shown(), "queue": counts.queue.shown(),
                "compute_input": counts.compute_input.shown(), "compute_infer": counts.compute_infer.shown(),
                "compute_output": counts.compute_output.shown(), "cache_hit": nothing, "cache_miss": nothing,
            },
            "response_stats": {}, "batch_stats": [], "memory_usage": [],
        }  # fmt: skip
