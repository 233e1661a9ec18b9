"""Conspirator's figure 2 from MISO's measurements: throughput by share of a GPU, and the sufficient share.

The paper trains ResNet152 on shares of an A100, a V100 and a T4. It gives its result as a sentence, without numbers:
not much improvement beyond half of the GPU. MISO measured eight other models on the MIG instances of an A100 40GB.
Gavel has only whole V100, P100 and K80; on shares it shows how fast two jobs run on one GPU together.
"""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import Any, Final

from offpath.cli.demo import samples
from offpath.cli.files.throughputs import MISO_GPU, gavel_pairs, miso
from offpath.cli.files.traces import found
from offpath.sched.gpu.rightsizing import GAIN, ThroughputProfile

PAPER: Final = {"job": "ResNet152, training", "gpus": ["A100", "V100", "T4"], "knee_percent": 50}
GAINS: Final = (0.05, GAIN, 0.20)
ASSUMED: Final = (
    f"the knee is the smallest instance from which no larger one gives more than {GAIN:.0%} more"
    ' ("not much", as interpreted here)',
    "mean time of an iteration as MISO logged it; deepspeech2's inputs differ in length, so its runs are not alike",
    "a V100 or T4 has no MIG, so the paper's shares are most likely of compute alone (MPS); a MIG instance also has but"
    " part of the memory and its bandwidth, 3g and 4g half of it: memory-bound jobs gain on 7g",
    "an instance that is missing was not measured, usually for lack of memory, and is not offered",
)
_MISO: Final = "miso_a100_mig_iteration_times.csv.gz"
_ALONE: Final = "gavel_throughputs_isolated.csv.gz"
_TOGETHER: Final = "gavel_throughputs_colocated.csv.gz"
_HALF: Final = 57
"""α of the smallest instance of at least half a GPU, in percent."""


def figure_2(folder: str | None) -> dict[str, Any]:
    """The figure as plain values, from the files in ``folder``; None: only MISO's, which ship with offpath.

    Raises: TraceError.
    """
    if folder is None:
        profiles, pairs = miso(str(samples.DATA / "miso_iteration_times.csv")), None
    else:
        paths = found(folder, (_MISO, _ALONE, _TOGETHER))
        profiles, pairs = miso(paths[_MISO]), _pairs(paths[_ALONE], paths[_TOGETHER])
    return {
        "paper": PAPER, "gpu": MISO_GPU, "gain": GAIN, "assumed": list(ASSUMED),
        "rows": [_row(each) for each in profiles],
        "knees_by_gain": {
            f"{gain:g}": dict(sorted(Counter(each.share(each.knee(gain)) for each in profiles).items()))
            for gain in GAINS
        },
        "right_sized": {
            "mean_share": round(fmean(each.share(each.knee()) for each in profiles), 1),
            "mean_throughput": round(fmean(_kept(each) for each in profiles), 4),
        },
        "pairs_on_a_whole_gpu": pairs,
    }  # fmt: skip


def _kept(profile: ThroughputProfile) -> float:
    return profile.knee().throughput / profile.rates[-1].throughput


def _row(profile: ThroughputProfile) -> dict[str, Any]:
    knee = profile.knee()
    return {
        "model": profile.model,
        "batch_size": profile.batch_size,
        "points": [
            {
                "profile": rate.profile, "share": profile.share(rate),
                "iterations_per_s": round(rate.throughput, 4), "normalised": round(part, 4),
            }
            for rate, part in zip(profile.rates, profile.normalised(), strict=True)
        ],
        "knee": {"profile": knee.profile, "share": profile.share(knee)},
    }  # fmt: skip


def _pairs(alone: str, together: str) -> dict[str, dict[str, Any]]:
    summary = {}
    for gpu, sums in gavel_pairs(alone, together).items():
        ran = sorted(each for each in sums if each is not None)
        quantiles = {f"p{round(100 * q)}": round(ran[int(q * (len(ran) - 1))], 3) for q in (0.1, 0.5, 0.9) if ran}
        summary[gpu] = {"pairs": len(sums), "ran": len(ran), **quantiles}
    return summary


def text(data: dict[str, Any]) -> str:
    """As text."""
    shares = sorted({point["share"] for row in data["rows"] for point in row["points"]})
    lines = [
        f"figure 2: training throughput on MIG instances of an {data['gpu']}, whole GPU = 1 (MISO); share in percent",
        f"{'model':14} {'batch':>5}  " + "".join(f"{share:>7}" for share in shares) + "   knee",
    ]
    for row in data["rows"]:
        parts = {point["share"]: f"{point['normalised']:.2f}" for point in row["points"]}
        cells = "".join(f"{parts.get(share, '-'):>7}" for share in shares)
        lines.append(f"{row['model']:14} {row['batch_size']:5}  {cells}   {row['knee']['profile']}")
    enough = sum(row["knee"]["share"] <= _HALF for row in data["rows"])
    paper = data["paper"]
    lines += [
        f"paper: {paper['job']}, on shares of {', '.join(paper['gpus'])}: not much better beyond"
        f" {paper['knee_percent']} % of the GPU",
        f"offpath: {enough} of {len(data['rows'])} models and batch sizes have enough with {_HALF} % or less",
    ]
    mean = data["right_sized"]
    lines.append(
        f"  each on its knee: {mean['mean_share']:.0f} % of a GPU on average,"
        f" {mean['mean_throughput']:.0%} of the throughput"
    )
    for gain, knees in data["knees_by_gain"].items():
        each = ", ".join(f"{share} %: {count}" for share, count in knees.items())
        lines.append(f'  knees where "not much" is {float(gain):.0%}: {each}')
    for gpu, summary in (data["pairs_on_a_whole_gpu"] or {}).items():
        if summary["ran"]:
            lines.append(
                f"  two jobs on one whole {gpu.upper()} (Gavel) run {summary['p50']:.2f} [{summary['p10']:.2f},"
                f" {summary['p90']:.2f}] times as far as one alone (median, p10, p90 of {summary['ran']} pairs;"
                f" {summary['pairs'] - summary['ran']} made no progress)"
            )
    return "\n".join([*lines, *(f"  assumed: {each}" for each in data["assumed"])])
