"""Figures 3, 4 and 5: one step of OPT-350M, with INA for none, all and some of its all-reduces, and by bandwidth."""

from __future__ import annotations

from typing import Any, Final

from offpath.cli.mina.cells import inputs, patterns
from offpath.sched.ina.decision import needed
from offpath.sched.ina.patterns import Network, Timed, ends_ns, step_ns, timed

_NETWORK: Final = Network(12.5e9, 1.5)
_SPEEDUP: Final = 1.5
"""Figure 12's setting: communication is the bottleneck of a step."""
_BANDWIDTHS: Final = tuple(round(10 ** (8.5 + n / 20), 1) for n in range(41))


def _pattern(folder: str | None) -> Any:
    return next(each for each in patterns(inputs(folder), 4) if each.name == "opt-350m-4")


def steps(folder: str | None) -> dict[str, Any]:
    """Figures 3 and 4: the phases of each all-reduce of a step."""
    job = timed(_pattern(folder), _NETWORK, gpu_speedup=_SPEEDUP)
    count = len(job.starts)
    few = needed(job)
    uses = {"none": [False] * count, "all": [True] * count, "needed": list(few)}
    rows = {name: _row(job, each) for name, each in uses.items()}
    return {"model": "opt-350m-4", "computation_s": job.duration_ns / 1e9, "rows": rows}


def _row(job: Timed, uses: list[bool]) -> dict[str, Any]:
    ends = ends_ns(job, uses)
    took = [job.ina[n] if each else job.plain[n] for n, each in enumerate(uses)]
    begins = [end - each for end, each in zip(ends, took, strict=True)]
    gaps = sum(begin - end for end, begin in zip(ends, begins[1:], strict=False))
    return {
        "step_s": step_ns(job, uses) / 1e9,
        "communication_s": (ends[-1] - begins[0]) / 1e9,
        "gaps_s": gaps / 1e9,
        "with_ina": sum(uses),
        "ina_s": sum(each for each, use in zip(took, uses, strict=True) if use) / 1e9,
        "operations": [[begin / 1e9, end / 1e9, use] for begin, end, use in zip(begins, ends, uses, strict=True)],
    }


def by_bandwidth(folder: str | None) -> dict[str, Any]:
    """Figure 5: the duration of a step over algorithm bandwidth; the turning point is the least bandwidth beyond which
    more would save less than 1 %.
    """
    pattern = _pattern(folder)
    points = [[bandwidth, timed(pattern, Network(bandwidth, 1.0)).none_ns / 1e9] for bandwidth in _BANDWIDTHS]
    turn = next(bandwidth for bandwidth, step in points if step <= 1.01 * points[-1][1])
    return {"model": "opt-350m-4", "points": points, "turning_point": turn}
