"""`sessions`: throughput and latency of 4 KB requests over 1 to 256 sessions of one tenant and of four.

One process drives all sessions; it shares the host's core with the workers. Rows alternate, block by block. A session
keeps several requests in flight where there are few sessions, so that the daemon is busy in every row.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Final, NamedTuple

from offpath.cli.bench.command import Bar, Report
from offpath.cli.bench.crowd import MOST_IN_FLIGHT, PAYLOAD_BYTES, Crowd, CrowdBlock
from offpath.cli.bench.measure import cores, machine, pin, ratio
from offpath.cli.bench.request_path.product import Options

DESCRIPTION: Final = "throughput and latency over 1 to 256 sessions of one tenant and of four"
TENANTS: Final = ("t0", "t1", "t2", "t3")
_OFFERED: Final = 64
"""Requests in flight over all sessions; more sessions have one each."""
THROUGHPUT_256, P99_BETWEEN = 0.85, 1.5


class Row(NamedTuple):
    """A condition: ``sessions`` in all, spread over the first ``tenants``."""

    tenants: int
    sessions: int

    @property
    def in_flight(self) -> int:
        """Of each session."""
        return min(MOST_IN_FLIGHT, max(1, _OFFERED // self.sessions))

    def spread(self) -> dict[str, int]:
        """Sessions of each tenant."""
        return dict.fromkeys(TENANTS[: self.tenants], self.sessions // self.tenants)


ROWS: Final = (
    *(Row(1, sessions) for sessions in (1, 16, 64, 256)),
    *(Row(4, sessions) for sessions in (4, 16, 64, 256)),
)
_FEW, _MANY = Row(4, 4), Row(4, 256)
_Blocks = dict[Row, list[CrowdBlock]]


def run(arguments: argparse.Namespace) -> Report:
    """Measure all rows. Raises: OffpathError: daemon, helper or sessions do not start."""
    started = time.monotonic()
    here = machine()
    where = cores(pinned=True)
    pin(where.host)
    blocks, count = (6, 3000) if arguments.quick else (20, 6000)
    most = {name: max(row.spread().get(name, 0) for row in ROWS) for name in TENANTS}
    crowd = Crowd(where, most, Options(arguments.spin).table())
    measured: _Blocks = {row: [] for row in ROWS}
    try:
        for row in ROWS:
            crowd.block(row.spread(), row.in_flight, count // 4)
        for number in range(blocks):
            for row in ROWS if number % 2 else reversed(ROWS):
                measured[row].append(crowd.block(row.spread(), row.in_flight, count))
    finally:
        crowd.close()
    data = {
        "benchmark": "sessions", "quick": arguments.quick, "machine": here, "is_pinned": where.is_pinned,
        "spin_us": arguments.spin, "nbytes": PAYLOAD_BYTES, "rows": [_row(row, measured[row]) for row in ROWS],
        **keys(measured), "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip
    return Report(data, _text(data), _bars(data))


def keys(measured: _Blocks) -> dict[str, Any]:
    """The two figures with bars."""
    rates = {row: [_rate(block) for block in measured[row]] for row in (_FEW, _MANY)}
    p99 = [_percentile(latencies, 0.99) for latencies in _by_tenant(measured[_MANY]).values()]
    return {
        "throughput_256_over_4": ratio(rates[_MANY], rates[_FEW]),
        "p99_between_tenants": round(max(p99) / min(p99), 3),
    }


def _rate(block: CrowdBlock) -> float:
    return sum(map(len, block.latencies_ns.values())) / block.wall_ns * 1e9


def _by_tenant(blocks: list[CrowdBlock]) -> dict[str, list[int]]:
    """Of all blocks: a block's own p99 is of too few requests to compare tenants."""
    return {name: [ns for block in blocks for ns in block.latencies_ns[name]] for name in blocks[0].latencies_ns}


def _percentile(latencies_ns: list[int], q: float) -> float:
    """µs."""
    ordered = sorted(latencies_ns)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] / 1e3


def _row(row: Row, blocks: list[CrowdBlock]) -> dict[str, Any]:
    count = sum(len(each) for each in blocks[0].latencies_ns.values())
    cpu = {
        role: statistics.median(block.cpu_ns[role] for block in blocks) / count / 1e3
        for role in ("daemon", "worker", "requester")
    }
    busy = {
        core: statistics.median(sum(block.cpu_ns[role] for role in roles) / block.wall_ns for block in blocks)
        for core, roles in (("dpu", ("daemon",)), ("host", ("worker", "requester")))
    }
    return {
        "tenants": row.tenants, "sessions": row.sessions, "in_flight_each": row.in_flight,
        "requests_per_s": round(statistics.median(map(_rate, blocks))),
        "by_tenant": {
            name: {"p50_us": round(_percentile(each, 0.5), 1), "p99_us": round(_percentile(each, 0.99), 1)}
            for name, each in _by_tenant(blocks).items()
        },
        "cpu_us_per_request": {role: round(us, 1) for role, us in cpu.items()},
        "busy": {core: round(part, 2) for core, part in busy.items()},
    }  # fmt: skip


def _bars(data: dict[str, Any]) -> list[Bar]:
    if not data["is_pinned"]:
        return []
    return [
        Bar("throughput_256_over_4", data["throughput_256_over_4"]["median"], THROUGHPUT_256, is_upper=False),
        Bar("p99_between_tenants", data["p99_between_tenants"], P99_BETWEEN),
    ]


def _text(data: dict[str, Any]) -> str:
    lines = [
        f"{data['nbytes']} bytes, spin {data['spin_us']} µs, {data['seconds']} s; p50/p99 µs of each tenant;"
        " CPU µs per request of daemon, workers, requester; busy: part of the DPU's and the host's core",
        f"{'tenants':>8}{'sessions':>9}{'in flight':>10}{'requests/s':>11}{'CPU':>18}{'busy':>12}  p50/p99",
    ]
    for row in data["rows"]:
        cpu = "/".join(f"{us:.0f}" for us in row["cpu_us_per_request"].values())
        busy = "/".join(f"{part:.2f}" for part in row["busy"].values())
        tenants = "  ".join(f"{each['p50_us']:.0f}/{each['p99_us']:.0f}" for each in row["by_tenant"].values())
        flying = f"{row['sessions']} × {row['in_flight_each']}"
        lines.append(
            f"{row['tenants']:>8}{row['sessions']:>9}{flying:>10}{row['requests_per_s']:>11}{cpu:>18}{busy:>12}"
            f"  {tenants}"
        )
    over = data["throughput_256_over_4"]
    lines.append(f"throughput_256_over_4: {over['median']:.3f} [{over['min']:.3f}, {over['max']:.3f}]")
    return "\n".join([*lines, "", "bars"])
