"""A job's process on one node: ``python -m offpath.cli.demo.netpack.process FOLDER OPTIONS``, started by an engine.

It reads where it runs from the engine's and the job manager's variables (docs/jobs.md), trains through the statistical
switch, and writes what it measured to FOLDER/NODE.json. On the PS's node it is the PS too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from offpath.bindings.errors import OffpathError
from offpath.bindings.ina.packets import Packet
from offpath.cli.demo.netpack import training
from offpath.host_helper.ina.statistical import endpoint
from offpath.host_helper.ina.statistical.sender import Sender, Window

FLUSH_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Where:
    """What the environment says. ``rank`` None: this node has the PS only."""

    job: str
    node: str
    nodes: tuple[str, ...]
    shares: tuple[int, ...]
    ps: str
    uses_ina: bool
    switch: str

    @property
    def rank(self) -> int | None:
        """This node's, in the order of the workers."""
        return self.nodes.index(self.node) if self.node in self.nodes else None


def where(environment: dict[str, str]) -> Where:
    """Raises: KeyError, ValueError: not started by an engine."""
    workers = [each.rpartition(":") for each in environment["OFFPATH_WORKERS"].split(",")]
    node = environment["OFFPATH_NODE"]
    return Where(
        environment["OFFPATH_JOB"], node, tuple(name for name, _, _ in workers),
        tuple(int(count) for _, _, count in workers), environment["OFFPATH_PS_NODE"],
        environment["OFFPATH_INA"] == "1", json.loads(environment["OFFPATH_SWITCHES"]).get(node, ""),
    )  # fmt: skip


def main(argv: list[str]) -> int:
    """Train; the exit code is 0 when the training is complete."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--data-bytes", type=int, required=True)
    parser.add_argument("--compute-ms", type=float, default=0.0)
    parser.add_argument("--window", default="2:8:64", help="least:first:most, in packets")
    parser.add_argument("--payload-bytes", type=int, default=4096)
    parser.add_argument("--plain-hash", action="store_true", help="do not rehash after collisions")
    arguments = parser.parse_args(argv)
    here = where(dict(os.environ))
    least, first, most = arguments.window.split(":")
    window = Window(float(least), float(first), int(most))
    number = endpoint.job_number(here.job)
    count = len(here.nodes)
    faults: list[OffpathError] = []
    server: threading.Thread | None = None
    if count > 1 and here.node == here.ps:
        attach = endpoint.attach_of(number, count, here.node, None)
        # a daemon, so that the process ends when its worker fails
        server = threading.Thread(target=_serve, args=(here.switch, attach, window.most, faults), daemon=True)
        server.start()
    if here.rank is not None:
        plan = training.Training(arguments.seed, here.shares, arguments.data_bytes, arguments.steps)
        sender = Sender(number, here.rank, count, window, uses_ina=here.uses_ina, rehashes=not arguments.plain_hash)
        measured = _train(plan, here, sender, arguments)
        path = arguments.folder / f"{here.node}.json"
        path.with_suffix(".new").write_text(json.dumps(measured), "ascii")
        path.with_suffix(".new").rename(path)
    if server is not None:
        server.join()
    for fault in faults:
        print(f"parameter server: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _serve(address: str, attach: Packet, ring: int, faults: list[OffpathError]) -> None:
    try:
        endpoint.serve(address, attach, ring, FLUSH_S)
    except OffpathError as fault:
        faults.append(fault)


def _train(plan: training.Training, here: Where, sender: Sender, arguments: argparse.Namespace) -> dict[str, Any]:
    assert here.rank is not None
    weights = plan.weights()
    steps: list[tuple[int, int]] = []
    rates: list[float] = []
    with contextlib.ExitStack() as held:
        worker = None
        if len(here.nodes) > 1:
            attach = endpoint.attach_of(endpoint.job_number(here.job), len(here.nodes), here.node, here.rank)
            worker = held.enter_context(endpoint.Worker(here.switch, sender, attach, arguments.payload_bytes))
        began_ns = time.monotonic_ns()
        for number in range(plan.steps):
            ready_ns = time.monotonic_ns() + round(arguments.compute_ms * 1e6)
            mine = plan.gradient(weights, number, here.rank)
            time.sleep(max(0, ready_ns - time.monotonic_ns()) / 1e9)  # stands for a real model's computation
            sent_ns = time.monotonic_ns()
            total = worker.all_reduce(mine) if worker is not None else mine
            steps.append((sent_ns, time.monotonic_ns()))
            if worker is not None and worker.flowed_bps:
                rates.append(worker.flowed_bps)
            weights = training.step(weights, total)
    ended_ns = time.monotonic_ns()
    return {
        "rank": here.rank, "nodes": here.nodes, "shares": here.shares, "ps": here.ps, "uses_ina": here.uses_ina,
        "weights": training.fingerprint(weights), "accuracy": plan.accuracy(weights),
        "began_ns": began_ns, "ended_ns": ended_ns, "steps_ns": steps, "rates_bps": rates,
        "bytes_per_step": 4 * plan.parameters, "rtt_ms": sender.rtt_ns / 1e6, "window": sender.window,
        "sender": asdict(sender.counters),
    }  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
