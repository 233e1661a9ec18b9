"""A daemon as its own process: CONFIG.toml DIRECTORY. Says one line when ready, its statistics at the end.

Told ``block`` on its standard input, its loop does nothing until it is told more, as if a disk or a driver held it;
told ``jam``, its copy engine's thread is no more. `clocks.CLOCK` gives it clocks of its own, `limits.LIMITS` shorter
limits.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import resource
import select
import sys
from pathlib import Path

from clocks import shift_clocks  # the script's own folder is first on sys.path
from limits import shorten_limits

from offpath.dpu_daemon.config import Sources
from offpath.dpu_daemon.config.lastgood import read_or_last_good
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.serve import run


def ready(daemon: Daemon) -> None:
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), told, daemon)
    print(json.dumps({"lineage": daemon.identity.lineage}), flush=True)


def told(daemon: Daemon) -> None:
    line = os.read(sys.stdin.fileno(), 100)
    if line.strip() == b"block":
        select.select([sys.stdin], [], [])
        line = os.read(sys.stdin.fileno(), 100)
    if line.strip() == b"jam":
        daemon.requests.engine._work.put(None)
    if not line:
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())


if __name__ == "__main__":
    shift_clocks()
    shorten_limits()
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the test
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    if few := os.environ.get("OFFPATH_TEST_NOFILE"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(few), int(few)))
    if calls := os.environ.get("OFFPATH_TEST_CALLS"):
        from confine import confine

        confine(Path(calls).read_text().split())
    where, directory = sys.argv[1:]
    sources = Sources(where)
    loaded = read_or_last_good(sources, directory)
    print(json.dumps(run(loaded.config, directory, ready, sources, loaded.refused)), flush=True)
