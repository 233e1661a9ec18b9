"""A daemon as its own process: CONFIG.json DIRECTORY. Says one line when ready, its statistics at the end."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
from pathlib import Path

from offpath.dpu_daemon.config import parse_config
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.serve import run


def ready(daemon: Daemon) -> None:
    print(json.dumps({"lineage": daemon.lineage}), flush=True)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the test
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    if calls := os.environ.get("OFFPATH_TEST_CALLS"):
        from confine import confine  # the script's own folder is first on sys.path

        confine(Path(calls).read_text().split())
    where, directory = sys.argv[1:]
    print(json.dumps(run(parse_config(json.loads(Path(where).read_text()), where), directory, ready)), flush=True)
