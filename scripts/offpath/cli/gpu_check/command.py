"""`offpath gpu check`: the twelve checks of a GPU, each in its own process. Nothing is reset, no MIG mode is changed.

A check is ok, failed, or not possible with its reason. The others run whatever becomes of one. On the GPU emulator
(`OFFPATH_GPU_PATH`) every check is labelled EMULATED, and its times say nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import orjson

from offpath.bindings.errors import DeviceError, OptionRefused
from offpath.bindings.nvml.session import Nvml
from offpath.cli.bench.gpu.setting import Setting, find
from offpath.cli.bench.measure import machine
from offpath.cli.gpu_check import runner
from offpath.cli.gpu_check.plan import CHECKS
from offpath.cli.gpu_check.runner import FAILED, NOT_POSSIBLE, Outcome

_TOTAL_S: Final = 470.0
_LEAST_S: Final = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout; the text goes to stderr")
    parser.add_argument("--only", metavar="N,N", default="", help="only the checks with these numbers (1 to 12)")
    parser.add_argument("--quick", action="store_true", help="small counts and sizes")


def main(arguments: argparse.Namespace) -> int:
    """0: no check failed. 1: one failed, or there is no GPU."""
    chosen = _chosen(arguments.only)
    out = sys.stderr if arguments.json else sys.stdout
    began = time.monotonic()
    setting = find(is_quick=arguments.quick)
    print(_title(setting), file=out, flush=True)
    awake = _stay_awake()
    outcomes = []
    for number in chosen:
        check = CHECKS[number]
        left_s = _TOTAL_S - (time.monotonic() - began)
        if left_s < _LEAST_S:
            outcomes.append(Outcome(check, NOT_POSSIBLE, f"the {_TOTAL_S:.0f} s of all checks are over"))
        else:
            outcomes.append(runner.run(check, setting, min(check.limit_s, left_s)))
        print("\n".join(_lines(outcomes[-1], setting)), file=out, flush=True)
    if awake is not None:
        awake.close()
    seconds = round(time.monotonic() - began, 1)
    counts = {status: sum(each.status == status for each in outcomes) for status in (runner.OK, FAILED, NOT_POSSIBLE)}
    print(f"{', '.join(f'{n} {status}' for status, n in counts.items())}; {seconds} s", file=out, flush=True)
    if arguments.json:
        sys.stdout.write(orjson.dumps(_document(setting, outcomes, seconds)).decode() + "\n")
    return 1 if counts[FAILED] or not setting.uuid else 0


def _stay_awake() -> Nvml | None:
    """A session of NVML: without a client a driver without persistence mode shuts the GPU down, and each process of the
    checks would wait for its start. The checks' processes are started, not forked, and do not inherit it."""
    try:
        return Nvml()
    except DeviceError:
        return None


def _chosen(text: str) -> list[int]:
    """Raises: OptionRefused: not numbers of checks."""
    if not text:
        return list(CHECKS)
    words = text.split(",")
    if any(not word.isdecimal() or len(word) > 9 or int(word) not in CHECKS for word in words):
        raise OptionRefused(f"--only {text}: use numbers from 1 to {max(CHECKS)}, separated by commas")
    return sorted({int(word) for word in words})


def _title(setting: Setting) -> str:
    if not setting.uuid:
        return f"no GPU: {setting.problem}"
    emulated = "EMULATED: no figure is a GPU's. " if setting.is_emulated else ""
    return f"{emulated}{setting.name}, {setting.uuid}, {setting.nbytes >> 20} MiB"


def _lines(outcome: Outcome, setting: Setting) -> Iterator[str]:
    label = " (EMULATED)" if setting.is_emulated else ""
    why = f": {outcome.why}" if outcome.why else ""
    yield f"{outcome.check.number:2}  {outcome.check.name}: {outcome.status}{label}{why} [{outcome.seconds} s]"
    for name, figure in outcome.figures.items():
        value = figure["value"]
        text = f"{value:.6g}" if isinstance(value, float) else orjson.dumps(value).decode().strip('"')
        yield f"      {name:44} {text} {figure['unit']}".rstrip()
    for text in outcome.met:
        yield f"      met   {text}"
    for text in outcome.unmet:
        yield f"      UNMET {text}"
    if outcome.log:
        yield from (f"      | {line}" for line in outcome.log.splitlines()[-12:])


def _document(setting: Setting, outcomes: list[Outcome], seconds: float) -> dict[str, Any]:
    return {
        "command": "gpu check", "machine": machine(), "quick": setting.is_quick, "is_emulated": setting.is_emulated,
        "gpu": {"uuid": setting.uuid, "name": setting.name, "nbytes": setting.nbytes, "problem": setting.problem},
        "checks": [
            {
                "number": each.check.number, "name": each.check.name, "status": each.status, "why": each.why,
                "seconds": each.seconds, "figures": each.figures, "met": each.met, "unmet": each.unmet,
                "log": each.log,
            }
            for each in outcomes
        ],
        "seconds": seconds,
    }  # fmt: skip
