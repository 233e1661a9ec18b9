"""Clients of a gateway under the kill sweep: ADDRESS_FILE TOKEN NAME LOG SEED. So many at a time as `CLIENTS`, each
with a connection of its own, which is opened again, at the address that the file names by then, when it breaks.

The log has the lines of ``sweep_main.py``. What the gateway's death leaves without an answer ends as ``LOST``, or, if
it was never sent, as ``NOT_BEGUN``.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import sys
import threading
import time
from pathlib import Path
from random import Random

from sweep_kernels import ROW  # the script's own folder is first on sys.path

CLIENTS = 3
BOUND_S = 60.0
MODEL = "tally-rows"


class Client:
    def __init__(self, addresses: Path, token: str, name: str, log: int, random: Random) -> None:
        self._addresses, self._name, self._log, self._random = addresses, name, log, random
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._connection: http.client.HTTPConnection | None = None

    def _send(self, *words: object) -> None:
        os.write(self._log, (" ".join(map(str, words)) + "\n").encode())

    def turn(self, number: int) -> None:
        tag = f"n-{self._name}-{number}"
        self._send("B", tag, "gateway")
        row = list(tag.encode().ljust(ROW, b"."))
        tensor = {"name": "tag", "datatype": "UINT8", "shape": [1, ROW], "data": row}
        body = json.dumps({"inputs": [tensor]}).encode()
        try:
            connection = self._connected()
        except OSError as fault:
            self._send("E", tag, "NOT_BEGUN", type(fault).__name__, time.monotonic())
            time.sleep(0.1)
            return
        self._send("R", tag, time.monotonic())
        try:
            connection.request("POST", f"/v2/models/{MODEL}/infer", body, self._headers)
            answer = connection.getresponse()
            said = json.loads(answer.read())
        except (OSError, http.client.HTTPException) as fault:
            connection.close()
            self._connection = None
            self._send("E", tag, "LOST", type(fault).__name__, time.monotonic())
            return
        if answer.status == 200:
            is_right = said["outputs"][0]["data"] == row
            self._send("E", tag, "COMPLETED" if is_right else "WRONG", "none", time.monotonic())
            return
        status, _, reason = said["error"].partition(": ")  # of an offpath request: STATUS: reason
        if status.isupper():
            self._send("E", tag, status, reason.replace(" ", "_") or "none", time.monotonic())
        else:
            self._send("E", tag, f"HTTP_{answer.status}", said["error"].replace(" ", "_"), time.monotonic())
            time.sleep(0.02)

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            host, _, port = self._addresses.read_text().rpartition(":")
            connection = http.client.HTTPConnection(host, int(port), timeout=BOUND_S)
            connection.connect()
            self._connection = connection
        return self._connection

    def run(self, stopping: threading.Event, numbers: range) -> None:
        for number in numbers:
            if stopping.is_set():
                break
            self.turn(number)
            time.sleep(self._random.random() * 0.01)
        if self._connection is not None:
            self._connection.close()


def main() -> None:
    addresses, token, name, path, seed = sys.argv[1:]
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    stopping = threading.Event()
    numbers = [range(first, 1 << 30, CLIENTS) for first in range(CLIENTS)]
    clients = [Client(Path(addresses), token, name, log, Random(f"{seed} {n}")) for n in range(CLIENTS)]
    threads = [
        threading.Thread(target=each.run, args=(stopping, mine)) for each, mine in zip(clients, numbers, strict=True)
    ]
    for thread in threads:
        thread.start()
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()
    stopping.set()
    for thread in threads:
        thread.join(BOUND_S)
    print(json.dumps({"left": [thread.name for thread in threads if thread.is_alive()]}), flush=True)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the test
    main()
