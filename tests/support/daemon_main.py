"""A daemon as its own process: CONFIG.toml DIRECTORY. Says one line when ready, its statistics at the end."""

from __future__ import annotations

import ctypes
import json
import logging
import sys

from offpath.dpu_daemon.config import Sources
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.serve import run


def ready(daemon: Daemon) -> None:
    print(json.dumps({"lineage": daemon.lineage}), flush=True)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the test
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    where, directory = sys.argv[1:]
    sources = Sources(where)
    print(json.dumps(run(sources.read().config, directory, ready, sources)), flush=True)
