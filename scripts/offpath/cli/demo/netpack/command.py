"""`offpath demo netpack`: real training jobs, placed by a job manager, on a rack with a statistical switch."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from typing import Any, Final

from offpath.bindings.errors import OffpathError, OptionRefused

ENGINES: Final = ("slurm", "local", "ray")
_RATIOS: Final = (0.2, 0.4, 0.6, 0.8, 1.0)
_QUICK_RATIOS: Final = (0.4, 1.0)
_PICTURES: Final = (".svg", ".png", ".pdf")
_STEPS: Final = 12
_QUICK_STEPS: Final = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, and nothing else, to stdout")
    parser.add_argument("--engine", choices=ENGINES, help="what starts the jobs' processes (slurm if it can be "
                        "unpacked here, else local)")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer points and jobs, within a minute")
    parser.add_argument("--picture", default=os.path.join("out", "demo-netpack.svg"), metavar="PATH",
                        help="file of the plots (%(default)s); empty: none")  # fmt: skip


def main(arguments: argparse.Namespace) -> int:
    """0: sums are exact and the bar is reached; 1: not, and stderr has the reason."""
    if arguments.picture and os.path.splitext(arguments.picture)[1] not in _PICTURES:
        raise OptionRefused(f"--picture {arguments.picture}: a name that ends in {', '.join(_PICTURES)}")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from offpath.cli.demo.netpack import report

    folder = tempfile.mkdtemp(prefix="offpath-netpack-")
    is_ok = False
    try:
        made = _run(folder, arguments)
        is_ok = bool(made["ok"])
    finally:
        if is_ok:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            _echo(f"logs are kept in {folder}")
    if arguments.picture:
        _draw(made, arguments.picture)
    print(json.dumps(made) if arguments.json else report.render(made))
    for fault in made["faults"]:
        print(f"demo netpack: FAILED: {fault}", file=sys.stderr)
    return 0 if is_ok else 1


def _run(folder: str, arguments: argparse.Namespace) -> dict[str, Any]:
    from offpath.cli.demo.netpack import ratios, report, workload
    from offpath.cli.local import engines

    began = time.monotonic()
    kind = arguments.engine or engines.default()
    wanted = workload.jobs(is_quick=arguments.quick)
    before = report.cores()
    with engines.started(kind, folder, workload.LEAVES) as engine:
        _echo(f"engine {kind}: {len(wanted)} training jobs on {len(engine.nodes)} emulated servers")
        live = workload.live(folder, engine, wanted)
    simulated = workload.simulate(wanted, engines.GPUS, live.start_s)
    for each in live.ran:
        each.simulated_s = simulated[each.job.name]
    busy = report.busy_part(before, report.cores())
    points = []
    steps = _QUICK_STEPS if arguments.quick else _STEPS
    for pat_ratio in _QUICK_RATIOS if arguments.quick else _RATIOS:
        for count in (1, 2):
            _echo(f"figure 14: PAT ratio {pat_ratio:g}, {count} job{'s' * (count > 1)}")
            points += ratios.measure(os.path.join(folder, f"ratio-{pat_ratio:g}-{count}"), pat_ratio, count, steps)
    if not arguments.quick:
        _echo("figure 14 with the plain hash: PAT ratio 1, 1 job")
        points += ratios.measure(os.path.join(folder, "ratio-plain"), 1.0, 1, steps, is_plain=True)
    made = report.build(kind, live, points, busy)
    made["seconds"] = round(time.monotonic() - began, 1)
    return made


def _draw(made: dict[str, Any], path: str) -> None:
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        _echo("no picture: matplotlib is not installed here (extra `plot`)")
        return
    from offpath.cli.demo.netpack import picture

    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        picture.draw(made, path)
    except OSError as fault:
        raise OffpathError(f"no picture at {path}: {fault}") from None
    made["picture"] = path


def _echo(text: str) -> None:
    print(f"demo netpack: {text}", file=sys.stderr, flush=True)
