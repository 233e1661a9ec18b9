"""Bars, budgets and the text of a run (docs/design.md, Budgets)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from offpath.cli.bench.command import Bar
from offpath.cli.bench.request_path.plan import FLOORS

_UNPINNED: Final = "_unpinned"
_SHOWN: Final = (*FLOORS, "1", "2", "3", "4")
_Bound = tuple[float, bool, float | None]
"""The bound, whether it is an upper one, and the aim beyond it."""
_BOTH: Final[dict[str, _Bound]] = {
    "p50_over_setting2_4ms": (1.10, True, None),
    "host_cpu_over_setting3": (0.3, True, None),
    "floor_over_p50_batch32": (0.9, False, None),
    "p99_inflation_80": (1.2, True, None),
    "p50_over_triton_600k": (0.7, True, None),
}
_BLOCKING: Final[dict[str, _Bound]] = {
    "p50_over_floor_4k": (2.0, True, None),
    "p50_over_floor_600k": (1.5, True, 1.3),
    "p50_over_floor_600k_unpinned": (2.0, True, None),
    "throughput_over_floor_600k_16": (0.7, False, None),
}
_SPINNING: Final[dict[str, _Bound]] = {
    "p50_over_floor_4k": (1.2, True, None),
    "p50_over_floor_600k": (1.2, True, None),
    "throughput_over_floor_600k_16": (0.8, False, 0.85),
}
CPU_BUDGET_US: Final = {"daemon": 45.0, "worker": 18.0, "requester": 22.0}
"""Per request of 4 KB with 16 in flight, spin 0. Absolute times, so the exit code does not depend on them."""


def bars(data: dict[str, Any]) -> list[Bar]:
    """The bars of this run's ratios. They apply to pinned cores, the one with ``_unpinned`` in its name to none."""
    if not data["is_pinned"]:
        return []
    bounds = (_SPINNING if data["spin_us"] else _BLOCKING) | _BOTH
    found = []
    for name, (bound, is_upper, aim) in bounds.items():
        source = data["ratios_unpinned"] if name.endswith(_UNPINNED) else data["ratios"]
        measured = source.get(name.removesuffix(_UNPINNED))
        if measured is not None:
            found.append(Bar(name, measured["median"], bound, is_upper, aim))
    return found


def text(data: dict[str, Any]) -> str:
    """The run for people."""
    here = data["machine"]
    build = "optimised" if here["python_is_optimised"] else "not optimised"
    lines = [
        f"request path on {here['cpu']}, {here['cores']} cores, Python {here['python']} ({build}), "
        f"spin {data['spin_us']} µs, {data['seconds']} s",
        other_work(data),
        *(f"{name} left out: {reason}" for name, reason in data["left_out"].items()),
        "",
        *_rows(data["rows"]),
        *(f"{r['setting']:18} p50 {r['p50_us']:.0f} p99 {r['p99_us']:.0f} µs" for r in data.get("triton_rows", ())),
    ]
    for title, name in (("ratios (pinned)", "ratios"), ("ratios (unpinned)", "ratios_unpinned")):
        lines += ["", title]
        lines += [f"  {n}: {r['median']:.3f} [{r['min']:.3f}, {r['max']:.3f}]" for n, r in data[name].items()]
    lines += ["", f"requests/s, 600 KB, 16 in flight: {data['requests_per_s_600k_16']}"]
    lines += _cpu(data)
    return "\n".join([*lines, "", "bars"])


def other_work(data: dict[str, Any]) -> str:
    """How quiet the machine was."""
    cores = data["other_cpu"]
    return f"other work during the blocks: {cores['other']} of a core; stolen by other machines: {cores['stolen']}"


def _rows(rows: list[dict[str, Any]]) -> list[str]:
    by_point: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        key = (not row["pinned"], row["bytes"], row["in_flight"], row["kernel_ms"], row["host_load"], row["realtime"])
        by_point[key][row["setting"]] = row
    lines = [f"{'bytes':>10} {'fly':>3} {'ms':>2} {'load':>4} {'pin':>3}    p50/p99 µs by setting, host CPU µs in []"]
    for key in sorted(by_point):
        unpinned, nbytes, in_flight, kernel_ms, load, is_realtime = key
        point = by_point[key]
        cells = [_cell(name, point[name]) for name in _SHOWN if name in point]
        pin, scheduler = "no" if unpinned else "yes", "rr" if is_realtime else ""
        lines.append(f"{nbytes:>10} {in_flight:>3} {kernel_ms:>2} {load:>4} {pin:>3} {scheduler:2} " + "  ".join(cells))
    return lines


def _cell(setting: str, row: dict[str, Any]) -> str:
    return f"{setting}: {row['p50_us']:.0f}/{row['p99_us']:.0f} [{row['host_cpu_us']:.0f}]"


def _cpu(data: dict[str, Any]) -> list[str]:
    """CPU time per request at 4 KB and 16 in flight, with its budgets."""
    lines = ["", "CPU µs per request, 4 KB, 16 in flight"]
    for row in sorted(data["rows"], key=lambda row: _SHOWN.index(row["setting"])):
        if row["pinned"] and row["bytes"] == 4096 and row["in_flight"] == 16:
            spent = row["cpu_us_per_request"]
            lines.append(f"  {row['setting']:13}" + "".join(f" {role} {us:6.1f}" for role, us in spent.items()))
    for name, found in data["budgets"].items():
        word = "met" if found["met"] else "MISSED"
        lines.append(f"  budget: {name} {found['us']:.1f} ≤ {found['budget_us']:g}: {word}")
    return lines if len(lines) > 2 else []


def budgets(cpu_us: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Setting 4's CPU time per request of each role beside its budget."""
    return {
        role: {"us": cpu_us[role], "budget_us": budget, "met": cpu_us[role] <= budget}
        for role, budget in CPU_BUDGET_US.items()
        if role in cpu_us
    }
