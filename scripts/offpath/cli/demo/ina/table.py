"""The report of `demo ina` as text."""

from __future__ import annotations

from typing import Any


def render(report: dict[str, Any]) -> str:
    """The report as text."""
    lines = [
        f"two jobs of {report['ranks']} ranks on one emulated root, {report['steps_per_mode']} steps of each mode in "
        f"{report['blocks']} blocks; score: (none - mode) / (none - all)"
    ]
    for setting in report["settings"]:
        lines += [
            "",
            f"{setting['name']}: links of {setting['link_bytes_per_s'] / 1e6:.2f} MB/s, communication "
            f"{setting['communication_share']:.0%} of a step, demand for INA {setting['ina_demand']:.2f}; the best "
            f"schedule scores {_mean(setting['bound']):.3f}, shared {setting['shared_of_bound']:.3f} of that"
            + ("" if setting["is_judged"] else " (NOT JUDGED: the machine was busy)"),
            "  blocks, and the part of the cores that other processes used: "
            + ", ".join(f"{_how(each)} {each['others_took']:.0%}" for each in setting["blocks"]),
            f"  {'mode':10} {'time of each job, s':>22} {'score of each job':>19} {'mean [90 %]':>22} "
            f"{'INA / refused / plain':>24}",
        ]
        for run in setting["runs"]:
            times = " ".join(f"{each:9.3f}" for each in run["jct_s"])
            scores = " ".join(f"{each:8.3f}" for each in run["efficiency_score"])
            low, high = run["mean_score_ci90"]
            counts = " / ".join(str(sum(run[name])) for name in ("with_ina", "refused", "plain"))
            mean = f"{run['mean_score']:.3f} [{low:.3f}, {high:.3f}]"
            lines.append(f"  {run['mode']:10} {times:>22} {scores:>19} {mean:>22} {counts:>24}")
    lines.append("")
    for job, each in report["weights"].items():
        same = "bit-identical to" if each["equal"] else "DIFFERENT from"
        lines.append(
            f"job {job}: weights after {each['steps']} steps {same} the same training without INA; "
            f"{each['accuracy']:.0%} of held-out digits right"
        )
    if "picture" in report:
        lines.append(f"picture: {report['picture']}")
    return "\n".join(lines)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _how(block: dict[str, Any]) -> str:
    return "quiet" if block["is_quiet"] else "disturbed"
