"""Restless clients of a gateway: ADDRESS TOKEN SEED. So many at a time as `CLIENTS`, with connections that come and go.
Most ask for what a model can compute, some go on with a sequence, some send what is no request. Says one line when
ready; answers "count" with what it has counted, "stop" likewise, then ends.

``sent`` is what the daemon may have got; each ends as ``right``, ``wrong``, or with the first word of the answer's
text. ``refused`` is what the gateway had to refuse itself, and did.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import sys
import threading
import time
from collections import Counter
from random import Random
from typing import Any

CLIENTS = 3
BOUND_S = 60.0
HOSTILE = (
    ("scaling", b"{", 400), ("scaling", b'{"inputs": []}', 400), ("scaling", b'{"inputs": 7}', 400),
    ("nobody", b'{"inputs": []}', 404),
)  # fmt: skip
"""A model, a body, and the status that it gets, or 500 in its place."""


class Client:
    def __init__(self, address: str, token: str, random: Random, number: int) -> None:
        self.counted: Counter[str] = Counter()
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._random = random
        self._number = number
        self._steps = self._sum = 0
        self._connection = self._open()

    def _open(self) -> http.client.HTTPConnection:
        host, _, port = self._address.rpartition(":")
        self.counted["connections"] += 1
        return http.client.HTTPConnection(host, int(port), timeout=BOUND_S)

    def _ask(self, model: str, body: bytes) -> tuple[int, Any]:
        self._connection.request("POST", f"/v2/models/{model}/infer", body, self._headers)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def turn(self) -> None:
        kind = self._random.random()
        if kind < 0.02:
            self._connection.close()
            self._connection = self._open()
        elif kind < 0.1:
            model, body, status = self._random.choice(HOSTILE)
            got, said = self._ask(model, body)
            self.counted["refused" if got in (status, 500) and "error" in said else "wrong"] += 1
        elif kind < 0.4:
            self._step()
        else:
            rows = self._random.choice((1, 7, 300))
            data = [float(self._random.randrange(1000)) for _ in range(3 * rows)]
            self._judge("scaling", _tensor("FP32", [rows, 3], data), [2 * value for value in data])

    def _step(self) -> None:
        """The next of five of a sequence; one that was lost begins anew."""
        value = self._random.randrange(100)
        self._steps += 1
        self._sum += value
        parameters = {
            "sequence_id": self._number, "sequence_start": self._steps == 1, "sequence_end": self._steps == 5
        }  # fmt: skip
        body = {**_tensor("INT64", [1], [value]), "parameters": parameters}
        if not self._judge("accumulate", body, [self._sum]) or self._steps == 5:
            self._steps = self._sum = 0

    def _judge(self, model: str, body: dict[str, Any], right: list[Any]) -> bool:
        self.counted["sent"] += 1
        status, said = self._ask(model, json.dumps(body).encode())
        if status == 200:
            is_right = said["outputs"][0]["data"] == right
            self.counted["right" if is_right else "wrong"] += 1
            return is_right
        word = said["error"].partition(":")[0]
        self.counted[word if word.isupper() else f"HTTP_{status}"] += 1
        if status == 429:
            time.sleep(0.02)  # it was told to come later
        return False

    def run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self.turn()
        self._connection.close()


def _tensor(datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "data": data}]}


def main() -> None:
    address, token, seed = sys.argv[1:]
    stopping = threading.Event()
    clients = [Client(address, token, Random(f"{seed} {n}"), n + 1) for n in range(CLIENTS)]
    threads = [threading.Thread(target=each.run, args=(stopping,)) for each in clients]
    for thread in threads:
        thread.start()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        if line.strip() != "count":
            break
        assert all(thread.is_alive() for thread in threads)
        print(json.dumps(sum((each.counted for each in clients), Counter())), flush=True)
    stopping.set()
    for thread in threads:
        thread.join(BOUND_S)
    print(json.dumps(sum((each.counted for each in clients), Counter())), flush=True)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the test
    main()
