"""Conspirator's model of a GPU, and Algorithm 1 as printed, corrected: the oracle that faster code must equal.

The paper's GPU j has W_j fractions of α_jw percent each; any set of them may be in use while Σ α ≤ C_j (1d). As a
`GpuSpec`, fraction w is a profile's instance at start w that takes one slice. MIG's rules then reduce to 1d, and code
for real geometry also runs on the paper's model.

Errors of the printed text that are corrected here: R > 0 finds the tenant (line 6); a fraction is skipped only if
*another* tenant has it (18); all allocated fractions count against C_j (32); a new fraction must itself hold the job
(34).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from offpath.sched.gpu.geometry import GpuSpec, Profile

TABLE_3: Final = (*[14] * 7, *[28] * 3, *[42] * 2, 57, 100)
"""α_jw in percent of an A100, in the paper's order (w = 1 … 14). H100, H200 and B200 have the same sevenths."""
A30_FRACTIONS: Final = (*[25] * 4, *[50] * 2, 100)
FRACTIONS: Final = {
    "A100-40GB": TABLE_3, "A100-80GB": TABLE_3, "H100-80GB": TABLE_3, "H200-141GB": TABLE_3, "B200-180GB": TABLE_3,
    "A30-24GB": A30_FRACTIONS,
}  # fmt: skip
CAPACITY: Final = 100


def paper_gpu(gpu: str, model: str = "A100-40GB", memory_bytes: int = 1 << 62) -> GpuSpec:
    """A GPU of the paper's model: no placement geometry, unlimited memory. Raises: KeyError: unknown ``model``."""
    fractions = FRACTIONS[model]
    profiles = tuple(
        Profile(
            f"{alpha}%", alpha, 1, memory_bytes, tuple(w for w, other in enumerate(fractions) if other == alpha),
            fractions.count(alpha),
        )
        for alpha in dict.fromkeys(fractions)
    )  # fmt: skip
    return GpuSpec(gpu, model, CAPACITY, len(fractions), profiles)


@dataclass(slots=True)
class _Gpu:
    """One GPU j: α_jw, y_jw, T_jw (the printed T_ijw; i is irrelevant) and its name and model."""

    name: str
    model: str
    alpha: tuple[int, ...]
    y: list[bool] = field(init=False)
    tenant: list[str | None] = field(init=False)

    def __post_init__(self) -> None:
        self.y = [False] * len(self.alpha)
        self.tenant = [None] * len(self.alpha)


@dataclass(slots=True)
class _Assigned:
    """x_ijwt = 1."""

    tenant: str
    share: int
    j: int
    w: int


class Transcription:
    """Algorithm 1, line by line, one job at a time. O(N·J·W) each; for tests."""

    def __init__(self, gpus: Sequence[tuple[str, str]]) -> None:
        """``gpus``: name and model of each, in order."""
        self._gpus = [_Gpu(name, model, FRACTIONS[model]) for name, model in gpus]
        self._x: dict[int, _Assigned] = {}

    def assign(self, job: int, tenant: str, share: int, models: Collection[str] = ()) -> tuple[str, int] | None:
        """Assign a job with R = ``share`` percent (restricted to ``models``, if any) and return its GPU and fraction;
        None if none fits, with nothing changed."""
        for j, gpu in enumerate(self._gpus):  # 11
            if models and gpu.model not in models:
                continue
            for w, alpha in enumerate(gpu.alpha):  # 15
                if gpu.tenant[w] is not None and gpu.tenant[w] != tenant:  # 18
                    continue
                if gpu.y[w]:  # 20
                    left = alpha - sum(x.share for x in self._x.values() if (x.j, x.w) == (j, w))
                    if left >= share:  # 25
                        return self._assigned(job, tenant, share, j, w)
                else:
                    left = CAPACITY - sum(a for a, is_used in zip(gpu.alpha, gpu.y, strict=True) if is_used)
                    if left >= alpha and alpha >= share:  # 34
                        gpu.y[w], gpu.tenant[w] = True, tenant  # 36, 37
                        return self._assigned(job, tenant, share, j, w)
        return None

    def _assigned(self, job: int, tenant: str, share: int, j: int, w: int) -> tuple[str, int]:
        self._x[job] = _Assigned(tenant, share, j, w)
        return self._gpus[j].name, w

    def end(self, job: int) -> None:
        """End the job; its fraction is freed with the last job. Raises: KeyError: the job is not assigned."""
        ended = self._x.pop(job)
        if not any((x.j, x.w) == (ended.j, ended.w) for x in self._x.values()):
            gpu = self._gpus[ended.j]
            gpu.y[ended.w], gpu.tenant[ended.w] = False, None
