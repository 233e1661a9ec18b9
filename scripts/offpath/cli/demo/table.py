"""The demo's terminal output: one line while it runs, a table at its end."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any, Final

from offpath.cli.demo.drive import Outcome
from offpath.cli.demo.samples import STAGES, Plan

_LINE_EVERY_S: Final = 5.0
_TTY_EVERY_S: Final = 0.1


class Progress:
    """Done of total, and per tenant; rewritten in place on a terminal, otherwise printed occasionally."""

    def __init__(self, plan: Plan) -> None:
        self._total = len(plan.jobs)
        self._names = sorted(plan.tenants)
        self._is_tty = sys.stderr.isatty()
        self._next_s = 0.0

    def __call__(self, outcome: Outcome) -> None:
        """A job ended."""
        done = len(outcome.answers) + len(outcome.failed)
        now = time.monotonic()
        if now < self._next_s and done < self._total:
            return
        self._next_s = now + (_TTY_EVERY_S if self._is_tty else _LINE_EVERY_S)
        per = Counter(a.tenant for a in outcome.answers.values())
        leases = len({a.lane.lease for a in outcome.answers.values()})
        text = (
            f"{now - outcome.start_ns / 1e9:5.1f} s  {done}/{self._total} jobs  {leases} leases  tenants "
            f"{' '.join(f'{name[-1]}:{per[name]}' for name in self._names)}"
        )
        if self._is_tty:
            sys.stderr.write(f"\r{text}\x1b[K" + ("\n" if done == self._total else ""))
            sys.stderr.flush()
        else:
            print(text, file=sys.stderr, flush=True)


def render(report: dict[str, Any]) -> str:
    """The closing table, plain text."""
    lines = [
        f"{report['jobs']} jobs, {report['answered']} answered in {report['seconds']:.1f} s; "
        f"{report['correct_fraction']:.0%} equal to the direct computation, bit for bit; "
        f"{report['accuracy'] or 0:.1%} of digits right",
        "",
        f"{'tenant':<10}{'trace key':>10}{'jobs':>6}{'equal':>7}{'digits':>9}{'right':>8}{'leases':>8}"
        f"{'lanes':>7}{'checks':>8}{'violations':>12}",
    ]
    for t in report["tenants"]:
        right = "-" if t["accuracy"] is None else f"{t['accuracy']:.1%}"
        lines.append(
            f"{t['name']:<10}{t['trace_key']:>10}{t['jobs']:>6}{t['correct']:>7}{t['images']:>9}{right:>8}"
            f"{t['leases']:>8}{t['lanes']:>7}{t['checks']:>8}{t['violations']:>12}"
        )
    lines += ["", "stages, p50 / p99 in µs", f"{'tenant':<10}" + "".join(f"{stage:>18}" for stage in STAGES)]
    for t in [*report["tenants"], {"name": "all", "stages_us": report["stages_us"]}]:
        lines.append(f"{t['name']:<10}" + "".join(f"{_pair(t['stages_us'][stage]):>18}" for stage in STAGES))
    each, found = report["bytes_per_request"], report["isolation"]
    profiles = ", ".join(f"{count} of {name}" for name, count in report["profiles"].items())
    path = report["datapath"]
    lines += [
        "",
        f"data path   fabric {path['fabric']}, copy engine {path['copy_engine']}"
        + (f" ({path['doca_version']})" if path["doca_version"] else "")
        + (f", requesters in namespace {path['netns']}" if path["netns"] else "")
        + f"; started in {report['started_in_s']:.1f} s",
        f"leases      {sum(report['profiles'].values())} served jobs ({profiles}); {report['lane_openings']} lanes "
        f"opened, {report['lane_changes']} times one tenant's lane memory went to another",
        f"isolation   {report['isolation_checks']} checks, {report['isolation_violations']} violations: "
        f"{found['canary_scans']} canary scans, {found['launches_checked']} launches, "
        f"{found['answers_checked']} answers",
        f"per request {each['daemon_cpu']:,.0f} B accessed by the daemon's CPU ({each['header_read']:,.0f} read, "
        f"{each['answer_written']:,.0f} written); {each['dma']:,.0f} B moved by the copy engine",
    ]
    if "picture" in report:
        lines.append(f"picture     {report['picture']}")
    return "\n".join(lines)


def _pair(values: dict[str, float] | None) -> str:
    return "-" if values is None else f"{values['p50']:,.0f} / {values['p99']:,.0f}"
