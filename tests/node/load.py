"""Requests to a node under test: REQUESTS TOKEN_FILE STOP_FILE [PAUSE_S [idempotent]]. Run with the Python of
offpath-host's environment.

Sends requests one after the other, with PAUSE_S between them (default 0), until there are REQUESTS answers and
STOP_FILE exists, checks each answer, and prints one line of JSON. A request that is lost ends OUTCOME_UNKNOWN; a
session that does not outlive the daemon raises PeerGone. Only idempotent requests are run again after a worker's death.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter

import numpy as np

from offpath.host_helper import Options, connect
from offpath.host_helper.errors import RequestFailed

_LONGEST_S = 600.0


def main(requests: int, token_file: str, stop: str, pause_s: float, options: Options) -> int:
    """0: every answer was right."""
    ends: Counter[str] = Counter()
    longest = 0.0
    ends_at = time.monotonic() + _LONGEST_S
    with connect(tenant="vision", token_file=token_file) as requester:
        while not requester.is_durable():
            time.sleep(0.05)
        print("begun", file=sys.stderr, flush=True)
        number = 0
        while number < requests or not os.path.exists(stop):
            if time.monotonic() > ends_at:
                ends["too late"] += 1
                break
            values = np.arange(number, number + 1_000, dtype=np.int64)
            began = time.monotonic()
            try:
                result = requester.submit("twice", [values], timeout=120, options=options)
                ends["right" if np.array_equal(result.array, values * 2) else "wrong"] += 1
            except RequestFailed as failed:
                ends[failed.status.name] += 1
            longest = max(longest, time.monotonic() - began)
            number += 1
            time.sleep(pause_s)
    print(json.dumps({"answers": dict(ends), "longest_s": round(longest, 2)}), flush=True)
    return 0 if set(ends) == {"right"} else 1


if __name__ == "__main__":
    pause_s = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
    options = Options(is_idempotent=sys.argv[5:] == ["idempotent"])
    raise SystemExit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], pause_s, options))
