"""The live part of `bench venn`, in a process of its own: `python -m offpath.cli.bench.venn_live CASE`.

A collaboration controller in another process, with its file on the disk, and one client process, on the same cores. All
devices are distinct, and each gets a lease, which is on the disk before it is answered. Over ZeroMQ a gateway sends
batches; over HTTP each connection sends one check-in after the other. Then devices check in and answer, until the
controller knows a million that have worked today.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import uvloop

from offpath.bindings.errors import OffpathError
from offpath.bindings.wire import collab_admin
from offpath.bindings.zeromq.gateway import BatchEnd
from offpath.bindings.zeromq.keys import make_keys, read_public, read_secret
from offpath.cli import collab_client
from offpath.cli.bench.venn_world import Case
from offpath.cli.local import child
from offpath.dpu_daemon.collab.tokens import Tokens

BATCH: Final = 256
IN_FLIGHT: Final = 4
"""Batches that the gateway has sent and that are not answered."""
CONNECTIONS: Final = 32
_WEEK_S: Final = 6 * 86_400.0
_KEY: Final = "bench-key-of-tokens-of-devices-32"
_WAIT_S: Final = 60.0


@dataclass(slots=True)
class Live:
    """A controller that runs, and what its devices send."""

    folder: Path
    case: Case
    process: subprocess.Popen[bytes]
    http: tuple[str, int] = ("", 0)
    gateway: str = ""
    tokens: Tokens = field(default_factory=lambda: Tokens([_KEY.encode()]))
    sent: int = 0
    """Devices that have checked in."""

    def check_in(self) -> dict[str, Any]:
        """Of a device that has not checked in before."""
        number = self.sent
        self.sent += 1
        name = f"device-{number}"
        kind = number % self.case.atoms
        return {
            "device": name, "token": self.tokens.of(name), "sent_ms": time.time_ns() // 10**6,
            "numbers": {"mem_mib": 1_024 * (1 + kind % 8), "cpu_score": 100 * (1 + kind // 8)},
            "versions": {"os": f"{12 + kind % 3}.1"}, "labels": ["wifi", "idle"],
        }  # fmt: skip

    def rss_mib(self) -> float:
        """The most that the controller has had in memory."""
        text = Path(f"/proc/{self.process.pid}/status").read_text("ascii")
        return round(int(text.split("VmHWM:")[1].split()[0]) / 1024, 1)

    def cpu_s(self) -> float:
        """CPU time of the controller, all threads."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, request: Any, wanted: Any) -> Any:
        """An operator's request."""
        with collab_client.client(str(self.folder / "run")) as client:
            return client.query(request, wanted)


def started(folder: Path, case: Case) -> Live:
    """Raises: OffpathError: the controller did not start."""
    (folder / "device.key").write_text(_KEY)
    (folder / "device.key").chmod(0o600)
    make_keys("controller", str(folder))
    (folder / "allowed").mkdir()
    make_keys("gateway", str(folder / "allowed"))
    (folder / "collab.toml").write_text(
        f'[devices]\ntoken_keys = ["{folder}/device.key"]\nper_second = 1000000\n[http]\nlisten = "127.0.0.1:0"\n'
        f'[gateways]\nbind = "tcp://127.0.0.1:0"\nkey_file = "{folder}/controller.key"\n'
        f'allowed = "{folder}/allowed"\n[operation]\nstate = "{folder}/state.db"\n'
    )
    process = child.start(
        child.COMMAND_LINE, "collab", "run", str(folder / "collab.toml"), "--runtime-dir", str(folder / "run"),
        more=child.ONE_THREAD, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    line = process.stderr.readline().decode()
    if "devices: " not in line:
        raise OffpathError(f"the controller did not start: {line.strip() or process.wait()}")
    http, gateway = line.split("devices: ")[1].strip().split(", ")
    host, _, port = http.removeprefix("http://").rpartition(":")
    return Live(folder, case, process, (host, int(port)), gateway)


def opened(live: Live) -> None:
    """Jobs that need more devices than there are."""
    random = Random(live.case.seed)
    least = [
        {"mem_mib": 1_024 * random.randrange(8), "cpu_score": 100 * random.randrange(4)}
        for _ in range(live.case.groups - 1)
    ]
    for number in range(live.case.jobs):
        numbers = [{}, *least][number % live.case.groups]
        name, requirement = f"job-{number}", collab_admin.Requirement(numbers=numbers)
        live.ask(collab_admin.OpenRequest(job=name, requirement=requirement), collab_admin.JobAnswer)
        demand = collab_admin.DevicesRequest(job=name, round=0, demand=1_000_000, deadline_s=_WEEK_S)
        live.ask(demand, collab_admin.JobAnswer)


class Gateway:
    """Sends batches and takes their answers, in order."""

    def __init__(self, live: Live) -> None:
        folder = live.folder
        key, secret = str(folder / "controller.pub"), str(folder / "allowed" / "gateway.key")
        self._end = BatchEnd(live.gateway, read_public(key), read_secret(secret))
        self._waiting: deque[list[dict[str, Any]]] = deque()
        self._numbers = itertools.count()
        self.leases: deque[tuple[dict[str, Any], int]] = deque()
        """Check-ins with the leases that they got."""

    def send(self, items: list[dict[str, Any]]) -> None:
        """Send a batch; takes an answer first if too many are missing."""
        if len(self._waiting) >= IN_FLIGHT:
            self.take()
        body = json.dumps({"kind": "batch", "number": next(self._numbers), "items": items})
        if not self._end.send(body.encode(), _WAIT_S):
            raise OffpathError("the controller takes no batch")
        self._waiting.append(items)

    def take(self) -> None:
        """The answer to the first batch that has none."""
        body = self._end.receive(_WAIT_S)
        if body is None:
            raise OffpathError("the controller does not answer a batch")
        answers = json.loads(body)
        if answers["kind"] != "answers" or not self._waiting:
            raise OffpathError(f"a batch was refused: {body.decode()[:300]}")
        for item, answer in zip(self._waiting.popleft(), answers["items"], strict=True):
            if answer["kind"] in ("refused", "no_job"):
                raise OffpathError(f"a device got no lease: {answer}")
            if answer["kind"] == "lease":
                self.leases.append((item, answer["lease"]))

    def finish(self) -> None:
        """All answers."""
        while self._waiting:
            self.take()

    def close(self) -> None:
        """Hang up."""
        self._end.close()


def check_ins(live: Live, count: int) -> Iterator[list[dict[str, Any]]]:
    """Batches with ``count`` check-ins in all."""
    for begin in range(0, count, BATCH):
        yield [{"kind": "checkin", **live.check_in()} for _ in range(min(BATCH, count - begin))]


def results(gateway: Gateway, most: int) -> list[dict[str, Any]]:
    """Answers of devices that have a lease."""
    found: list[dict[str, Any]] = []
    while gateway.leases and len(found) < most:
        item, lease = gateway.leases.popleft()
        sent_ms = max(time.time_ns() // 10**6, item["sent_ms"] + 1)
        found.append(
            {"kind": "result", "device": item["device"], "token": item["token"], "sent_ms": sent_ms, "lease": lease,
             "is_good": True}
        )  # fmt: skip
    return found


def by_zmq(live: Live, gateway: Gateway, count: int) -> float:
    """Check-ins a second. The client makes them beforehand."""
    batches = list(check_ins(live, count))
    begun = time.monotonic()
    for batch in batches:
        gateway.send(batch)
    gateway.finish()
    return count / (time.monotonic() - begun)


def known(live: Live, gateway: Gateway, count: int) -> None:
    """Until that many devices have worked today."""
    for batch in check_ins(live, max(0, count - live.sent)):
        gateway.send([*results(gateway, 512 - len(batch)), *batch])
    gateway.finish()
    while gateway.leases:
        gateway.send(results(gateway, 512))
        gateway.finish()


class _Browser(asyncio.Protocol):
    """One connection: the next request follows each answer."""

    def __init__(self, requests: Iterator[bytes], done: asyncio.Future[None]) -> None:
        self._requests, self._done = requests, done
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`. An answer is small: it comes at once."""
        if not (data.startswith(b"HTTP/1.1 200") and b'"kind":"lease"' in data):
            self._end(OffpathError(f"a device got no lease: {data[:300]!r}"))
        else:
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._end(OffpathError("the controller closed a connection"))

    def _next(self) -> None:
        assert self._transport is not None
        body = next(self._requests, None)
        if body is None:
            self._end(None)
            self._transport.close()
        else:
            self._transport.write(body)

    def _end(self, fault: OffpathError | None) -> None:
        if self._done.done():
            return
        if fault is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(fault)


def by_http(live: Live, count: int) -> float:
    """Check-ins a second. The client makes them beforehand."""
    bodies = [json.dumps(live.check_in()).encode() for _ in range(count)]
    head = b"POST /v1/checkin HTTP/1.1\r\nhost: bench\r\ncontent-length: %d\r\n\r\n%b"
    requests = iter([head % (len(body), body) for body in bodies])

    async def all_of_them() -> float:
        loop = asyncio.get_running_loop()
        done: list[asyncio.Future[None]] = [loop.create_future() for _ in range(CONNECTIONS)]
        begun = time.monotonic()
        for each in done:
            await loop.create_connection(partial(_Browser, requests, each), *live.http)
        await asyncio.gather(*done)
        return count / (time.monotonic() - begun)

    return uvloop.run(all_of_them())


def measure(case: Case) -> dict[str, Any]:
    """The part's row. ``plans``: check-ins over HTTP, four times as many over ZeroMQ; ``decisions``: known devices."""
    with tempfile.TemporaryDirectory(prefix="offpath-b-") as folder:
        live = started(Path(folder), case)
        try:
            opened(live)
            empty = live.rss_mib()
            gateway = Gateway(live)
            cpu_s = [live.cpu_s()]
            zmq = by_zmq(live, gateway, 4 * case.plans)
            cpu_s.append(live.cpu_s())
            http = by_http(live, case.plans)
            cpu_s.append(live.cpu_s())
            known(live, gateway, case.decisions)
            gateway.close()
            found = live.ask(collab_admin.SummaryRequest(), collab_admin.Summary)
            rss_mib = live.rss_mib()
        finally:
            live.process.terminate()
            live.process.wait(_WAIT_S)
    return {
        "shape": "live", "jobs": case.jobs, "groups": case.groups, "atoms": case.atoms, "devices": found.worked,
        "zmq_checkins_per_s": round(zmq), "http_checkins_per_s": round(http), "commits": found.commits,
        "zmq_cpu_us": round((cpu_s[1] - cpu_s[0]) / (4 * case.plans) * 1e6, 1),
        "http_cpu_us": round((cpu_s[2] - cpu_s[1]) / case.plans * 1e6, 1),
        "rss_mib": rss_mib, "empty_rss_mib": empty,
    }  # fmt: skip


def main() -> int:
    """Print the part's row as JSON."""
    child.end_with_parent()
    print(json.dumps(measure(Case(**json.loads(sys.argv[1])))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
