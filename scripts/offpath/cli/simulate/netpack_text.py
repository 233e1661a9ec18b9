"""Text of `offpath simulate netpack`: what `netpack` saves of each policy's JCT, the paper's range beside it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def text(data: dict[str, Any]) -> str:
    """All parts that were run."""
    lines = list(_figures(data["figures"]))
    lines += list(_beyond(data["beyond"]))
    for row in data["starved"]:
        lines.append(
            f"64 GPUs among small jobs, {row['policy']}: started in {row['started']} of {row['seeds']} runs while small"
            f" jobs arrived ({row['window_s']:.0f} s); waited at most {row['longest_queue_s']:.0f} s,"
            f" bound {row['bound_s']:.0f} s"
        )
    for row in data["exact"]:
        lines.append(
            f"gap to the optimum of Table 3, {row['policy']}: mean {row['mean_gap']:.1%}, worst {row['worst_gap']:.1%},"
            f" optimal in {row['optimal']} of {row['cases']}"
        )
    return "\n".join(lines)


def _figures(rows: list[dict[str, Any]]) -> Iterable[str]:
    for figure in dict.fromkeys(row["figure"] for row in rows):
        yield f"figure {figure}"
        mine = [row for row in rows if row["figure"] == figure]
        for setting in dict.fromkeys(row["setting"] for row in mine):
            some = [row for row in mine if row["setting"] == setting]
            yield f"  {setting} ({some[0]['seeds']} seeds; paper: {_paper(some[0]['paper'])})"
            for row in some:
                yield "    " + (_time(row) if row["avg_jct_s"] is None else _run(row))


def _paper(numbers: dict[str, Any] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in numbers.items()) if numbers else "no number"


def _time(row: dict[str, Any]) -> str:
    return f"{row['policy']:20} {row['place_s']:8.3f} s, {row['per_job_ms']:.3f} ms a job"


def _run(row: dict[str, Any]) -> str:
    return (
        f"{row['policy']:20} JCT {row['avg_jct_s']:10.0f} ± {row['jct_sd_s']:.0f} s"
        f" ({row['avg_queue_s']:.0f} s queued), normalised {row['norm_jct']:.3f} ± {row['norm_jct_sd']:.3f},"
        f" without queueing {row['norm_run']:.3f} ± {row['norm_run_sd']:.3f}; DE {row['de']:.3f} ± {row['de_sd']:.3f}"
    )


def _beyond(rows: list[dict[str, Any]]) -> Iterable[str]:
    for row in rows:
        low, high = row["saved_low"], row["saved_high"]
        bounds = "" if low is None else f" [{low:+.1%}, {high:+.1%}]"
        yield (
            f"netpack against netpack-paper, {row['setting']}: JCT saved {row['saved']:+.1%}{bounds}, without queueing"
            f" {row['saved_run']:+.1%}; bar {row['bar']:+.0%} {'met' if row['met'] else 'NOT met'}"
        )
