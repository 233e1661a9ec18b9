"""What can be said of the sources themselves: nothing is decided by the wall clock, every fault point is somewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import pytest

from offpath.bindings.faults import POINTS

from .support.command import offpath
from .support.sources import ROOT, product

PRODUCT = ("bindings", "sched", "dpu_daemon", "host_helper")
WALL_CLOCKS = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime", "CLOCK_REALTIME"},
    "datetime": {"now", "utcnow", "today", "datetime", "date"},
    "date": {"today"},
}
MAY = {
    "dpu_daemon/offpath/dpu_daemon/operation/logs.py": "lines carry the time they were written at",
    "dpu_daemon/offpath/dpu_daemon/doctor/keys.py": "a certificate's end is a date, and only reported",
    "dpu_daemon/offpath/dpu_daemon/controller/shell.py": "where a controller without a memory begins to"
    " count terms; where the clock is behind, agents and switches say what they have heard of",
    "dpu_daemon/offpath/dpu_daemon/steady.py": "days, leases and dates outlive the process: they begin at the time that"
    " the machine believes, and go on by the clock since boot; devices' times are compared with the machine's clock",
    "host_helper/offpath/host_helper/gateway/statistics.py": "a model's last inference is a date, for people only",
    "host_helper/offpath/host_helper/collab/borrower.py": "devices' messages carry the time, which all jobs'"
    " processes share; the controller refuses one that is off, and leases end by the monotonic clock",
    "host_helper/offpath/host_helper/supervisor.py": "the line that says that it joined carries the time",
    "host_helper/offpath/host_helper/ina/collectives.py": "a job's later run is a newer incarnation; one that the clock"
    " calls older gets no INA, and runs",
}


def wall_clocks(nodes: Iterable[ast.AST]) -> list[str]:
    """Every way to ask what o'clock it is, as `module.name`, also by ``from time import time``."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in WALL_CLOCKS.get(node.value.id, ()):
                found.append(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module in WALL_CLOCKS:
            wanted = WALL_CLOCKS[node.module]
            found += [f"{node.module}.{name.name}" for name in node.names if name.name in wanted]
        elif isinstance(node, ast.Import):
            found += [
                f"{each.name} as {each.asname}" for each in node.names if each.name in WALL_CLOCKS and each.asname
            ]
    return found


@pytest.mark.parametrize(
    "text",
    ["import time\ntime.time()", "from time import time_ns", "from datetime import datetime", "import time as t"],
)
def test_the_reader_of_sources_finds_a_wall_clock(text: str) -> None:
    assert wall_clocks(ast.walk(ast.parse(text)))


def test_nothing_is_decided_by_the_wall_clock() -> None:
    """A clock that is set back or forth by an hour expires nothing and stops nothing."""
    asked = {str(path.relative_to(ROOT)): found for path, nodes in product(*PRODUCT) if (found := wall_clocks(nodes))}
    assert set(asked) == set(MAY), asked


def test_every_fault_point_is_a_place_in_the_source_and_the_doctor_lists_them() -> None:
    hit = []
    for _, nodes in product(*PRODUCT):
        for node in nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "faults.hit":
                (point,) = node.args
                assert isinstance(point, ast.Constant)
                hit.append(point.value)
    assert set(hit) == set(POINTS)
    listed = offpath("doctor", "--fault-points", "--json").document
    assert listed == POINTS
    assert [line.split()[0] for line in offpath("doctor", "--fault-points").out.splitlines()] == list(POINTS)
