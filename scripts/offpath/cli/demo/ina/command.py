"""`offpath demo ina`: two DDP trainings of four ranks each share an emulated switch, in every sharing mode."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any, Final

from offpath.bindings.errors import OffpathError

_BLOCKS: Final = 5
_STEPS: Final = 6
_LEAST_SAVED: Final = 0.10
_OF_BOUND: Final = 0.9
_LONGEST_PATH: Final = 60
_PICTURES: Final = (".svg", ".png", ".pdf")


class TrainMissing(OffpathError):
    """torch is not installed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, and nothing else, to stdout")
    parser.add_argument("--blocks", type=int, default=_BLOCKS, metavar="N", help="blocks of all modes (%(default)s)")
    parser.add_argument("--steps", type=int, default=_STEPS, metavar="N", help="steps measured of each mode in a block "
                        "(%(default)s)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of modes (%(default)s)")
    parser.add_argument("--picture", default=os.path.join("out", "ina.svg"), metavar="PATH", help="file of the picture "
                        "(%(default)s); empty: none")  # fmt: skip


def main(arguments: argparse.Namespace) -> int:
    """Run the demo. 0: all checks passed; 1: one failed, and stderr has the reason; `os.EX_TEMPFAIL` (75): the machine
    was too busy to judge the scores, and all else passed.
    """
    if min(arguments.blocks, arguments.steps) < 1:
        raise OffpathError("--blocks, --steps: at least one")
    if arguments.picture and not arguments.picture.endswith(_PICTURES):
        raise OffpathError(f"--picture: a path that ends in {', '.join(_PICTURES)}")
    if importlib.util.find_spec("torch") is None:
        raise TrainMissing("torch is not installed; OFFPATH_TORCH=cuda ./scripts/demo ina installs its CUDA build")
    report = _run(arguments)
    if arguments.json:
        print(json.dumps(report))
    else:
        from offpath.cli.demo.ina.table import render

        print(render(report))
    for fault in report["faults"]:
        print(f"demo: FAILED: {fault}", file=sys.stderr)
    for busy in report["not_judged"]:
        print(f"demo: not judged: {busy}", file=sys.stderr)
    return exit_code(report["faults"], report["not_judged"])


def exit_code(faults: Sequence[str], not_judged: Sequence[str]) -> int:
    """An observed fault takes precedence over a missing verdict."""
    if faults:
        return 1
    return os.EX_TEMPFAIL if not_judged else 0


def judged(name: str, saved: float, of_bound: float, taken: Sequence[float], wanted: int) -> tuple[list[str], str]:
    """A setting compared with the bars: its faults, or the reason for no verdict (empty: there is one).

    ``saved``: part of the time that INA for all saves; ``of_bound``: of `shared`; ``taken``: by block, the part of the
    cores that other processes used.
    """
    from offpath.cli.demo.ina import quiet

    _, is_sound = quiet.chosen(taken, wanted)
    if not is_sound:
        had = sum(quiet.is_quiet(each) for each in taken)
        return [], (
            f"{name}: the machine was busy: {had} of {wanted} blocks were quiet, in the others, processes outside "
            f"the demo used over {quiet.MOST_TAKEN:.0%} of the cores"
        )
    faults = []
    if saved < _LEAST_SAVED:
        faults.append(f"{name}: INA for all saves {saved:.1%} of the time, not {_LEAST_SAVED:.0%}")
    if of_bound < _OF_BOUND:
        faults.append(f"{name}: shared reaches {of_bound:.3f} of the best schedule, not {_OF_BOUND}")
    return faults, ""


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    from offpath.cli.demo.ina import drive
    from offpath.cli.demo.ina.cluster import Cluster

    begun = time.monotonic()
    parent = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(
        prefix="ina-", dir=parent if len(parent) <= _LONGEST_PATH else "/tmp", ignore_cleanup_errors=True
    ) as directory:
        _echo("starting five switches, a controller, four daemons and helpers, and two jobs of four ranks")
        with Cluster(directory) as cluster:
            outcome = drive.Drive(cluster, arguments.blocks, arguments.steps, arguments.seed, _echo).run()
    _echo("training both again in one process, without a network, to compare the weights")
    report = _report(outcome, _weights(outcome))
    report["seconds"] = round(time.monotonic() - begun, 1)
    if arguments.picture and importlib.util.find_spec("matplotlib") is None:
        _echo("no picture: matplotlib is not installed here (extra `plot`)")
    elif arguments.picture:
        _draw(outcome, report, arguments.picture)
    return report


def _weights(outcome: Any) -> dict[str, Any]:
    """Each job's, beside those of the same training without DDP, network and INA."""
    from offpath.cli.demo.ina import training
    from offpath.cli.demo.ina.cluster import RANKS
    from offpath.cli.demo.ina.drive import SEEDS

    training.one_thread()
    result = {}
    for job, end in outcome.ends.items():
        alone = training.fingerprint(training.alone(SEEDS[job], RANKS, end["steps"]))
        result[job] = {
            "steps": end["steps"], "accuracy": round(end["accuracy"], 4), "sha256": end["weights"],
            "without_ina_sha256": alone, "equal": alone == end["weights"],
        }  # fmt: skip
    return result


def _report(outcome: Any, weights: dict[str, Any]) -> dict[str, Any]:
    from offpath.cli.demo.ina import drive, quiet, score

    settings: list[dict[str, Any]] = []
    faults: list[str] = []
    not_judged: list[str] = []
    for number, setting in enumerate(drive.SETTINGS):
        blocks = drive.blocks(outcome, number)
        runs = score.runs(blocks)
        jobs = range(len(drive.JOBS))
        step_s = {
            mode: tuple(fmean(fmean(each[mode].steps_s[job]) for each in blocks) for job in jobs)
            for mode in (score.NONE, score.ALL)
        }
        held_s = tuple(fmean(each[score.ALL].ina_s[job] for each in blocks) for job in jobs)
        bound = score.bound(*(_two(each) for each in (step_s[score.NONE], step_s[score.ALL], held_s)))
        by_mode = {run.mode: run for run in runs}
        saved = 1 - sum(by_mode[score.ALL].jct_s) / sum(by_mode[score.NONE].jct_s)
        of_bound = by_mode["shared"].mean_score / fmean(bound)
        share = drive.communication_s(outcome, number, score.NONE) / fmean(step_s[score.NONE])
        taken = outcome.taken[number]
        counted, _ = quiet.chosen(taken, outcome.wanted)
        found, busy = judged(setting.name, saved, of_bound, taken, outcome.wanted)
        faults += found
        not_judged += [busy] if busy else []
        settings.append(
            {
                "name": setting.name, "compute_s": setting.compute_s, "link_bytes_per_s": setting.rate,
                "communication_share": round(share, 4), "ina_demand": round(score.demand(step_s[score.ALL], held_s), 4),
                "all_saves": round(saved, 4), "bound": [round(each, 4) for each in bound],
                "shared_of_bound": round(of_bound, 4), "is_judged": not busy,
                "blocks": [
                    {"others_took": round(each, 4), "is_quiet": quiet.is_quiet(each), "counts": at in counted}
                    for at, each in enumerate(taken)
                ],
                "runs": [_rounded(run, [each[run.mode] for each in blocks]) for run in runs],
            }
        )  # fmt: skip
    faults += [
        f"job {job}: its weights differ from those without INA" for job, each in weights.items() if not each["equal"]
    ]
    return {
        "ok": not faults and not not_judged, "faults": faults, "not_judged": not_judged,
        "jobs": list(drive.JOBS), "ranks": 4,
        "steps_per_mode": sum(len(each["none"].steps_s[0]) for each in drive.blocks(outcome, 0)),
        "blocks": len(drive.blocks(outcome, 0)), "settings": settings, "weights": weights,
        "controller": outcome.controller, "started_in_s": outcome.started_in_s,
        "sent_bytes": {job: end["sent"] for job, end in outcome.ends.items()},
        "emulated": "switches, links and GPUs; a step's computation is padded to compute_s",
    }  # fmt: skip


def _two(values: tuple[float, ...]) -> tuple[float, float]:
    one, other = values
    return one, other


def _rounded(run: Any, blocks: list[Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return round(value, 4)
        return [plain(each) for each in value] if isinstance(value, tuple) else value

    counts = {
        name: [sum(getattr(each, name)[job] for each in blocks) for job in range(len(run.jct_s))]
        for name in ("with_ina", "refused", "plain")
    }
    return {**{name: plain(value) for name, value in asdict(run).items()}, **counts}


def _draw(outcome: Any, report: dict[str, Any], path: str) -> None:
    from offpath.cli.demo.ina import drive, picture, quiet
    from offpath.cli.demo.ina.score import MODES

    shown = []
    for number in range(len(drive.SETTINGS)):
        last = quiet.chosen(outcome.taken[number], outcome.wanted)[0][-1]
        found = {each.mode: each for each in outcome.measured if (each.setting, each.block) == (number, last)}
        shown.append(
            [
                picture.Stretch(
                    mode, found[mode].from_ns, found[mode].steps,
                    tuple(
                        drive.within(outcome.operations[job], steps)
                        for job, steps in zip(drive.JOBS, found[mode].steps, strict=True)
                    ),
                )
                for mode in MODES
            ]
        )  # fmt: skip
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        picture.draw(report["settings"], shown, path)
    except OSError as fault:
        raise OffpathError(f"no picture at {path}: {fault}") from None
    report["picture"] = path


def _echo(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)
