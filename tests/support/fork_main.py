"""A process that forks while it has a requester: ADDRESS TOKEN_FILE. Says by name what each call came to in a forked
process, with what the request that was in flight meanwhile came to, and the next one."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from offpath.host_helper import Requester
from offpath.host_helper.pending import Pending

TIMEOUT_S = 60.0
ONE = np.array([1])
CALLS: dict[str, Callable[[Requester, Pending], Any]] = {
    "submit": lambda requester, pending: requester.submit("echo", [ONE], timeout=TIMEOUT_S),
    "begin": lambda requester, pending: requester.begin("echo", [ONE]),
    "stream": lambda requester, pending: next(requester.stream("count", [np.array([1.0, 1.0, 0.0, 0.0])])),
    "poll": lambda requester, pending: requester.poll(0.1),
    "result": lambda requester, pending: pending.result(0.1),
    "cancel": lambda requester, pending: pending.cancel(),
    "signature": lambda requester, pending: requester.signature("scale"),
    "is_emulated": lambda requester, pending: requester.is_emulated("echo"),
    "return_credit": lambda requester, pending: requester.return_credit(0),
    "close": lambda requester, pending: requester.close(),
}


def in_child(call: Callable[[Requester, Pending], Any], requester: Requester, pending: Pending) -> str:
    """What a forked process came to: what it got, or what was raised and its text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = repr(call(requester, pending))
        except BaseException as fault:
            said = f"{type(fault).__name__}: {fault}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def main() -> None:
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the test
    address, token_file = sys.argv[1:]
    came = {}
    with Requester(address, tenant="ada", token_file=token_file, slots=4) as requester:
        requester.submit("echo", [ONE], timeout=TIMEOUT_S)
        for name, call in CALLS.items():
            pending = requester.begin("sleep", [np.array([0.05])])
            said = in_child(call, requester, pending)
            slept = float(pending.result(TIMEOUT_S).array[0])
            came[name] = [said, slept, int(requester.submit("echo", [ONE], timeout=TIMEOUT_S).array[0])]
        answers = requester.stream("count", [np.array([3.0, 1.0, 0.0, 0.0])], timeout=TIMEOUT_S)
        next(answers)
        said = in_child(lambda requester, pending: answers.close(), requester, pending)
        came["a stream's close"] = [said, len(list(answers))]
    print(json.dumps({"pid": os.getpid(), "came": came}), flush=True)


if __name__ == "__main__":
    main()
