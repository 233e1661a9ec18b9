"""The demo's trainings without a network: ``python -m offpath.cli.demo.netpack.reference`` in a process of its own.

A process that computes with several threads sums in another order, so the reference runs as the jobs' processes do.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from offpath.bindings.errors import OffpathError
from offpath.cli.demo.netpack.training import Training, alone, fingerprint
from offpath.cli.local.child import ONE_THREAD, command, environment

_SECONDS: Final = 120.0


def fingerprints(trainings: Sequence[Training]) -> list[str]:
    """Of each training's weights. Raises: OffpathError: the process failed."""
    wanted = json.dumps([asdict(each) for each in trainings])
    try:
        done = subprocess.run(
            command("demo.netpack.reference"),
            input=wanted,
            env=environment(ONE_THREAD),
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as fault:
        raise OffpathError(f"the reference training failed: {fault}") from None
    found: list[str] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    plans = [Training(**{**each, "shares": tuple(each["shares"])}) for each in json.load(sys.stdin)]
    print(json.dumps([fingerprint(alone(plan)) for plan in plans]))
