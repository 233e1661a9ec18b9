"""Part of `bench ina-live`: one controller with a thousand emulated agents, over real ZeroMQ connections with CURVE.

Each agent has one rank of a job of four, so there are 250 jobs, on 250 trees of leaves with a root each. The
controller is a process; the agents share a few others. The switches are emulated in one process, because only
the controller is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Final

import orjson

from offpath.bindings.errors import PeerGone
from offpath.bindings.wire import cluster, control, ina_admin, parts
from offpath.bindings.wire.frames import FrameReader, frame
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES
from offpath.bindings.zeromq.keys import make_keys, read_public, read_secret
from offpath.cli import admin_client, controller_client
from offpath.cli.local.child import start
from offpath.sched.ina.protocol.agent import Agent
from offpath.sched.ina.protocol.records import RankState, epoch_from_data, state_to_data

RANKS: Final = 4
CROWDS: Final = 4
"""Processes that the agents share."""
_START_S: Final = 120.0
_MODULE: Final = "bench.ina_live_controller"


def measure(agents: int = 1000, seconds: float = 10.0) -> dict[str, Any]:
    """Start everything and measure: the time until every agent has reported and every job has its tree (s); epochs per
    second while the mode changes repeatedly; the time of one change until all ranks hold the new epoch (ms, median and
    worst); CPU of the controller (s per s) at rest and at work, and its memory (MiB).
    """
    agents -= agents % RANKS
    folder = tempfile.mkdtemp(prefix="offpath-b-")
    with contextlib.ExitStack() as held:
        held.callback(shutil.rmtree, folder, ignore_errors=True)
        _prepare(folder, agents)
        held.enter_context(_process(_MODULE, "switches", folder, str(agents // RANKS)))
        run = ["controller", "run", "--config", f"{folder}/controller.toml", "--runtime-dir", f"{folder}/run"]
        controller = held.enter_context(_process("main", *run))
        _until(lambda: os.path.exists(f"{folder}/run/controller.sock"))
        began = time.monotonic()
        for crowd in range(CROWDS):
            numbers = [str(n) for n in range(crowd, agents, CROWDS)]
            held.enter_context(_process(_MODULE, "crowd", folder, ",".join(numbers)))
        client = held.enter_context(controller_client.client(f"{folder}/run"))
        _until(lambda: len(_status(client).agents) == agents)
        received_s = time.monotonic() - began
        _until(lambda: _is_settled(client, agents // RANKS))
        granted_s = time.monotonic() - began
        rest = _load(controller.pid, 3.0)
        before, cpu = _status(client), _cpu_s(controller.pid)
        changes_ms: list[float] = []
        end = time.monotonic() + seconds
        started = time.monotonic()
        while time.monotonic() < end or len(changes_ms) < 4:
            mode = ("trylock", "shared")[len(changes_ms) % 2]
            at, sent = time.monotonic(), _status(client).counters["epochs_sent"]
            client.query(ina_admin.ModeRequest(mode=mode), ina_admin.ModeNow)
            _until(lambda sent=sent: _status(client).counters["epochs_sent"] >= sent + agents)
            _until(lambda: _is_settled(client, agents // RANKS))
            changes_ms.append((time.monotonic() - at) * 1e3)
        spent = time.monotonic() - started
        after = _status(client)
        epochs = after.counters["epochs_sent"] - before.counters["epochs_sent"]
        return {
            "agents": agents, "jobs": agents // RANKS, "all_heard_s": received_s, "all_granted_s": granted_s,
            "epochs_per_s": epochs / spent, "change_ms": {
                "median": sorted(changes_ms)[len(changes_ms) // 2], "worst": max(changes_ms), "n": len(changes_ms),
            },
            "cpu_at_rest": rest,  "cpu_at_work": (_cpu_s(controller.pid) - cpu) / spent,
            "rss_mib": _rss_mib(controller.pid),
        }  # fmt: skip


def _prepare(folder: str, agents: int) -> None:
    for name in ("keys", "allowed", "run"):
        os.mkdir(f"{folder}/{name}", 0o700)
    make_keys("controller", f"{folder}/keys")
    for n in range(agents):
        make_keys(f"h{n}", f"{folder}/keys")
        os.rename(f"{folder}/keys/h{n}.pub", f"{folder}/allowed/h{n}.pub")
    roots = range(agents // RANKS)
    topology = [f"SwitchName=r{r} Nodes={','.join(f'h{RANKS * r + n}' for n in range(RANKS))}" for r in roots]
    switches = [
        f'[[switch]]\nname = "r{r}"\naddress = "unix://{folder}/r{r}"\ncontrol = "unix://{folder}/switches"'
        for r in roots
    ]
    with open(f"{folder}/topology.conf", "w") as file:
        file.write("\n".join([*topology, f"SwitchName=top Switches=r[0-{len(roots) - 1}]", ""]))
    with open(f"{folder}/controller.toml", "w") as file:
        file.write(
            f'topology = "{folder}/topology.conf"\n[agents]\nbind = "ipc://{folder}/agents"\n'
            f'key_file = "{folder}/keys/controller.key"\nallowed = "{folder}/allowed"\n' + "\n".join([*switches, ""])
        )


@contextlib.contextmanager
def _process(module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = start(module, *arguments)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until(claim: Any) -> None:
    end = time.monotonic() + _START_S
    while not claim():
        if time.monotonic() > end:
            raise TimeoutError(f"the controller did not settle within {_START_S:g} s")
        time.sleep(0.02)


def _status(client: admin_client.AdminClient) -> ina_admin.ControllerStatus:
    return client.query(ina_admin.StatusRequest(), ina_admin.ControllerStatus)


def _is_settled(client: admin_client.AdminClient, jobs: int) -> bool:
    """Whether each job has its tree and its previous one is freed: one permission per job is left."""
    status = _status(client)
    return (status.jobs, status.holds) == (jobs, jobs)


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _load(pid: int, seconds: float) -> float:
    before = _cpu_s(pid)
    time.sleep(seconds)
    return (_cpu_s(pid) - before) / seconds


def _rss_mib(pid: int) -> float:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


# -- the other processes ----------------------------------------------------------------------------------------------
class _Host:
    """An agent with one rank, which holds and applies every epoch."""

    def __init__(self, folder: str, number: int, server_key: bytes, context: Any) -> None:
        self.end = _connected(folder, number, server_key, context)
        self.machine = Agent(f"h{number}")
        self.rank = RankState(f"job{number // RANKS}", 1, number % RANKS, RANKS)
        self.machine.on_state(self.rank)
        self._joiner = parts.Joiner()
        self._echo(cluster.AgentHello(host=f"h{number}"))

    def _echo(self, message: Any) -> None:
        for part in parts.messages(control.encode(message), MAX_MESSAGE_BYTES):
            while not self.end.send(part):
                time.sleep(0.001)

    def read(self) -> None:
        while (message := self.end.receive_message()) is not None:
            if (text := self._joiner.message(message)) is None:
                continue
            received = control.decode(cluster.TO_AGENT, text)
            if isinstance(received, cluster.AskAll):
                report = self.machine.on_query(received.term)
            elif isinstance(received, cluster.NewEpoch):
                handed = self.machine.epoch(epoch_from_data(received.epoch))
                if handed is None:
                    continue
                stamp = handed.epoch.stamp
                self.rank = RankState(self.rank.job, 1, self.rank.rank, RANKS, stamp, stamp)
                report = self.machine.on_state(self.rank)
            else:
                raise SystemExit(f"{self.machine.host} is refused: {received.detail}")
            if report is not None:
                states = [state_to_data(state) for state in report.states]
                self._echo(cluster.AgentReport(term=report.term, is_whole=report.is_whole, states=states))


def _connected(folder: str, number: int, server_key: bytes, context: Any) -> Any:
    """A thousand connections at once exceed the listening socket's backlog: a refused one is retried, as by agents."""
    from offpath.bindings.zeromq.connection import ZmqEnd
    from offpath.bindings.zeromq.library import CLUSTER

    secret = read_secret(f"{folder}/keys/h{number}.key")
    while True:
        end = ZmqEnd(f"ipc://{folder}/agents", server_key, secret, pace=CLUSTER, context=context)
        try:
            end.wait_opened(10.0)
            return end
        except PeerGone:
            end.close(at_once=True)
            time.sleep(0.05)


def _crowd(folder: str, numbers: list[int]) -> None:
    from offpath.bindings.zeromq.library import zmq

    context = zmq.Context(1)
    context.set(zmq.MAX_SOCKETS, 8 * len(numbers) + 64)
    poll = select.epoll()
    hosts = {}
    key = read_public(f"{folder}/keys/controller.pub")
    for number in numbers:
        host = _Host(folder, number, key, context)
        hosts[host.end.fileno()] = host
        poll.register(host.end.fileno(), select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            hosts[fd].read()


async def _switches(folder: str) -> None:
    """Answer as `dpu_daemon.switch.control` does: every permission is accepted, every fence is clear."""
    allowed: dict[tuple[str, int], dict[str, Any]] = {}

    def answer(received: dict[str, Any]) -> dict[str, Any]:
        match received:
            case {"kind": "lead", "term": term}:
                return {"kind": "led", "is_led": True, "term": term, "life": "1", "capacity": 1, "permissions": []}
            case {"kind": "allow", "permission": permission}:
                allowed[permission["job"], permission["stamp"]] = permission
                return {"kind": "allowed"}
            case {"kind": "fence", "job": job, "stamp": stamp}:
                for key in [key for key in allowed if key[0] == job and key[1] <= stamp]:
                    del allowed[key]
                return {"kind": "fenced"}
        return {"kind": "done"}

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames, waiting = FrameReader(), list[bytes]()
        while not waiting and (data := await reader.read(65_536)):
            waiting = frames.feed(data)
        if waiting:
            writer.write(frame(orjson.dumps(answer(orjson.loads(waiting[0])))))
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(peer, f"{folder}/switches", backlog=4096)
    await server.serve_forever()


def _child(role: str, folder: str, what: str) -> None:
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG: it ends with its parent
    if role == "crowd":
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        _crowd(folder, [int(n) for n in what.split(",")])
    else:
        import uvloop

        uvloop.run(_switches(folder))


if __name__ == "__main__":
    if sys.argv[1:2] in (["crowd"], ["switches"]):
        _child(*sys.argv[1:4])
    else:
        print(json.dumps(measure(*(int(each) for each in sys.argv[1:2]))))
