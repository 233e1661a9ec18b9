"""Text of `offpath simulate hire`: the figures with the load and the paper's number, and which claims are met."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from offpath.cli.simulate.hire_rows import SETTING


def text(data: dict[str, Any]) -> str:
    """All parts that were run."""
    lines = [line for part in dict.fromkeys(row["part"] for row in data["means"]) for line in _part(data, part)]
    for row in data["figure_7"]:
        lines.append(f"figure 7, μ = {row['mu']:g}: solver {row['p50_ms']} ms median, {row['p99_ms']} ms p99,"
                     f" {row['networks']} networks")  # fmt: skip
    for row in data["tuning"]:
        lines.append(f"timeout of {row['fallback']:.0%}, {row['name']:18} satisfied {row['inc_satisfied']:.1%},"
                     f" p99 {row['p99_s']:.1f} s{' (chosen)' if row['chosen'] else ''}")  # fmt: skip
    for row in data["claims"]:
        against = f" ({row['against']})" if row["against"] else ""
        lines.append(f"{'met    ' if row['met'] else 'NOT met'} {_kind(row)}, {row['claim']}: {row['offpath']:+.3f}"
                     f"{against}, paper {row['paper']}")  # fmt: skip
    for row in data["beyond"]:
        lines.append(
            f"{row['name']} against hire-paper, {_setting(row)}: satisfied {_percent(row['inc_satisfied'])} to"
            f" {_percent(row['inc_satisfied_paper'])}, detours {row['detours']} to {row['detours_paper']}; on the"
            f" {row['common_jobs']} jobs that both serve {row['detours_common']} to {row['detours_common_paper']};"
            f" {'met' if row['met'] else 'NOT met'}"
        )
    return "\n".join(lines)


def _part(data: dict[str, Any], part: str) -> Iterable[str]:
    rows = [row for row in data["means"] if row["part"] == part]
    if part == "tuning":
        return
    yield {"8": "figure 8"}.get(part, part)
    for setting in dict.fromkeys(tuple(row[each] for each in SETTING) for row in rows):
        some = [row for row in rows if tuple(row[each] for each in SETTING) == setting]
        yield f"  {_setting(some[0])} ({some[0]['seeds']} seeds, {some[0]['inc_jobs']} jobs that want switches)"
        yield (f"    {'':22} satisfied    groups  detours  CPU  recirc stages SRAM   p50 s  p90 s  p99 s   < 1 s"
               "  placed  paper")  # fmt: skip
        for row in some:
            yield "    " + _run(row)


def _setting(row: dict[str, Any]) -> str:
    return (f"{row['trace']}, {row['servers']} servers, {row['switches']} switches, {_kind(row)}, μ = {row['mu']:g},"
            f" SRAM offered at μ = 1: {row['offered']:.0%}")  # fmt: skip


def _kind(row: dict[str, Any]) -> str:
    return "heterogeneous" if row["heterogeneous"] else "homogeneous"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _run(row: dict[str, Any]) -> str:
    return (
        f"{row['name']:22} {_percent(row['inc_satisfied']):>6} ± {_percent(row['inc_satisfied_sd']):5}"
        f" {_percent(row['inc_groups_satisfied']):>6} {_number(row['detours'], '.3f'):>7}"
        f" {row['load_cpu_milli']:.2f}   {row['load_recirculation']:.2f}   {row['load_stages']:.2f}"
        f" {row['load_sram_kib']:.2f} {_number(row['p50_s'], '.3f'):>7} {_number(row['p90_s'], '.2f'):>6}"
        f" {_number(row['p99_s'], '.1f'):>6} {_percent(row['below_1_s']):>7} {_percent(row['placed']):>7}"
        f"  {_paper(row['paper'])}"
    )


def _paper(numbers: dict[str, Any] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in numbers.items()) if numbers else "no number"
