"""The plot of a run: which tenant held which part of which GPU, when, and its jobs there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from offpath.cli.demo.drive import Outcome
from offpath.cli.demo.gpus import Gpus
from offpath.cli.demo.place import KEEP_WARM_MS
from offpath.cli.demo.samples import Plan

# Okabe and Ito's palette, distinguishable for colour-blind readers
_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_TICK_S: Final = 0.03
_ALPHA: Final = 0.6
_IDLE_ALPHA: Final = 0.22


@dataclass(slots=True)
class _Held:
    """A lease as visible in its answers: from its first lane's opening to its last job's end."""

    gpu: int
    start: int
    slices: int
    compute: int
    tenant: int
    opened_ns: int
    ended_ns: int


def draw(plan: Plan, outcome: Outcome, report: dict[str, Any], gpus: Gpus, path: str) -> None:
    """Write the timeline; the file's suffix gives the format. Raises: OSError: it cannot be written."""
    slices = gpus.slices
    leases: dict[int, _Held] = {}
    for answer in outcome.answers.values():
        lane = answer.lane
        held = leases.setdefault(
            lane.lease,
            _Held(lane.gpu, lane.start, lane.memory_slices, lane.compute_slices, lane.tenant, lane.opened_ns, 0),
        )
        held.opened_ns = min(held.opened_ns, lane.opened_ns)
        held.ended_ns = max(held.ended_ns, lane.ended_ns)
    figure = Figure(figsize=(13, 7.6), layout="constrained")
    count = max((held.gpu for held in leases.values()), default=0) + 1
    panels = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
    seconds = max((held.ended_ns - outcome.start_ns for held in leases.values()), default=0) / 1e9
    for gpu, axes in enumerate(panels):
        axes.set(ylim=(slices, 0), xlim=(-0.1, seconds + 0.2), ylabel="memory slice")
        axes.set_title(f"GPU {gpu} ({gpus.title})", loc="left", fontsize=10)
        axes.set_yticks([n + 0.5 for n in range(slices)], [str(n) for n in range(slices)])
        axes.tick_params(axis="y", length=0)
        axes.hlines(range(1, slices), -1, seconds + 1, colors="#dddddd", linewidth=0.6, zorder=0)
        on_gpu = sorted((held for held in leases.values() if held.gpu == gpu), key=lambda held: held.opened_ns)
        for held in on_gpu:
            axes.add_patch(_span(held, outcome.start_ns))
            axes.add_patch(_tail(held, on_gpu, outcome.start_ns))
        _label(axes, on_gpu, outcome.start_ns)
        axes.add_collection(PatchCollection(_ticks(outcome, gpu), facecolor="#222222", linewidth=0, zorder=3))
    panels[-1].set_xlabel(f"seconds since the first request; {plan.span_s / 3600:.1f} hours of the trace, compressed")
    handles: list[Patch] = [
        Patch(facecolor=_COLOURS[n % len(_COLOURS)], alpha=_ALPHA, label=f"{name} (vc {plan.tenants[name]})")
        for n, name in enumerate(sorted(plan.tenants))
    ]
    handles += [
        Patch(facecolor="#bbbbbb", alpha=_IDLE_ALPHA * 2, label=f"kept warm, ≤ {KEEP_WARM_MS} ms"),
        Patch(facecolor="#222222", label="a job"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    figure.suptitle(
        f"MIG instances by tenant: {report['answered']} jobs, {len(leases)} leases, {report['lane_changes']} times "
        f"lane memory changed tenant, {report['isolation_violations']} violations"
    )
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def _span(held: _Held, start_ns: int) -> Rectangle:
    colour = _COLOURS[held.tenant % len(_COLOURS)]
    return Rectangle(
        ((held.opened_ns - start_ns) / 1e9, held.start + 0.04), (held.ended_ns - held.opened_ns) / 1e9,
        held.slices - 0.08, facecolor=colour, edgecolor=colour, alpha=_ALPHA, linewidth=0.8,
    )  # fmt: skip


def _tail(held: _Held, on_gpu: list[_Held], start_ns: int) -> Rectangle:
    """The keep-warm time after the last job: until it is over, or the next lease takes one of the slices.

    The plot thus shows a lease that was closed early for another one; answers contain no more than that.
    """
    mine = range(held.start, held.start + held.slices)
    heirs = (
        other.opened_ns
        for other in on_gpu
        if other.opened_ns > held.ended_ns and other.start < mine.stop and mine.start < other.start + other.slices
    )
    end_ns = min([held.ended_ns + KEEP_WARM_MS * 1_000_000, *heirs])
    return Rectangle(
        ((held.ended_ns - start_ns) / 1e9, held.start + 0.04), (end_ns - held.ended_ns) / 1e9, held.slices - 0.08,
        facecolor=_COLOURS[held.tenant % len(_COLOURS)], alpha=_IDLE_ALPHA, linewidth=0,
    )  # fmt: skip


def _label(axes: Any, leases: list[_Held], start_ns: int) -> None:
    """Name the profiles larger than the smallest, where the text has room."""
    for held in leases:
        if held.compute > 1:
            axes.text(
                (held.opened_ns - start_ns) / 1e9 + 0.03, held.start + held.slices - 0.15, f"{held.compute}g",
                fontsize=7, va="bottom", clip_on=True, zorder=4,
            )  # fmt: skip


def _ticks(outcome: Outcome, gpu: int) -> list[Rectangle]:
    """A mark per job, in the upper or lower half of its instance by its lane; always wide enough to be visible."""
    marks = []
    for answer in outcome.answers.values():
        lane = answer.lane
        if lane.gpu == gpu:
            at = (lane.started_ns - outcome.start_ns) / 1e9
            width = max((lane.ended_ns - lane.started_ns) / 1e9, _TICK_S)
            marks.append(Rectangle((at, lane.start + 0.14 + 0.4 * (lane.lane % 2)), width, 0.32))
    return marks
