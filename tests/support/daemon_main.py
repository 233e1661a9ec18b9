"""A daemon as its own process: CONFIG.json DIRECTORY. Says one line when ready, its statistics at the end.

Told ``block`` on its standard input, its loop does nothing for four seconds, as if a disk or a driver held it; told
``jam``, its copy engine's thread is no more.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import sys
import time
from pathlib import Path

from offpath.dpu_daemon.config import parse_config
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.serve import run

BLOCK_S = 4.0


def ready(daemon: Daemon) -> None:
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), told, daemon)
    print(json.dumps({"lineage": daemon.lineage}), flush=True)


def told(daemon: Daemon) -> None:
    line = os.read(sys.stdin.fileno(), 100)
    if line.strip() == b"block":
        time.sleep(BLOCK_S)
    if line.strip() == b"jam":
        daemon.engine._work.put(None)
    if not line:
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the test
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    if calls := os.environ.get("OFFPATH_TEST_CALLS"):
        from confine import confine  # the script's own folder is first on sys.path

        confine(Path(calls).read_text().split())
    where, directory = sys.argv[1:]
    print(json.dumps(run(parse_config(json.loads(Path(where).read_text()), where), directory, ready)), flush=True)
