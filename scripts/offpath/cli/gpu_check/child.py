"""One check in its own process: NUMBER DESCRIPTOR SETTING. Figures go to the descriptor, logs to standard error."""

from __future__ import annotations

import logging
import os
import signal
import sys
from types import FrameType

import orjson

from offpath.bindings.errors import OffpathError
from offpath.cli.gpu_check.figures import Figures, NotPossible, Setting
from offpath.cli.gpu_check.plan import CHECKS
from offpath.cli.local.child import end_with_parent


def main(number: int, fd: int, setting: Setting) -> None:
    """Run the check; its last line says how it ended."""
    check = CHECKS[number]
    end = {"end": "done", "why": ""}
    try:
        if check.needs_device and not setting.uuid:
            raise NotPossible(setting.problem)
        check.load()(setting, Figures(fd))
    except NotPossible as reason:
        end = {"end": "not possible", "why": str(reason)}
    except OffpathError as fault:
        end = {"end": "failed", "why": str(fault)}
    os.write(fd, orjson.dumps(end) + b"\n")


def _stop(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)  # through all `finally`, which end what the check has started


if __name__ == "__main__":
    end_with_parent()
    signal.signal(signal.SIGTERM, _stop)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    main(int(sys.argv[1]), int(sys.argv[2]), Setting(**orjson.loads(sys.argv[3])))
