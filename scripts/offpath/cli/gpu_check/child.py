"""One check in its own process: MODULE FUNCTION DESCRIPTOR SETTING. Figures go to the descriptor, logs to stderr."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from types import FrameType

import orjson

from offpath.bindings.errors import OffpathError
from offpath.cli.bench.gpu.setting import Setting
from offpath.cli.gpu_check.figures import Figures, NotPossible
from offpath.cli.local.child import end_with_parent


def main(module: str, function: str, fd: int, setting: Setting) -> None:
    """Run the check; its last line says how it ended."""
    end = {"end": "done", "why": ""}
    try:
        getattr(importlib.import_module(module), function)(setting, Figures(fd))
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
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Setting(**orjson.loads(sys.argv[4])))
