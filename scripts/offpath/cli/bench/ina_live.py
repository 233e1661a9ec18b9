"""`ina-live`: the cost of the runtime for a training job, with gloo ranks and emulated switches as real processes.

- ``overhead``: an all-reduce through the runtime without a grant, beside the same program on gloo alone, in
  alternating steps of one run. ``over_raw``: beside gloo without torch's own wrapper, which no training code calls.
- ``refusal``: an operation that requests INA and is refused, beside one that does not request it.
- ``epochs``: the step boundaries between an epoch's publication and its use.
- ``fabric``: the switches alone (`ina_live_fabric`).
- ``controller``: a thousand emulated agents on one controller (`ina_live_controller`).
- ``dead``: the gaps between all-reduces of two trainings with a live and a killed controller (`ina_live_dead`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from offpath.bindings.ina.connection import SwitchFabric
from offpath.bindings.ina.rate_limiter import RateLimiter
from offpath.cli.bench.command import Bar, Report
from offpath.cli.bench.ina_live_controller import measure as measure_controller
from offpath.cli.bench.ina_live_dead import measure as measure_dead
from offpath.cli.bench.ina_live_fabric import measure_fabric
from offpath.cli.bench.measure import machine
from offpath.cli.local.child import start
from offpath.cli.local.switches import Switches
from offpath.host_helper.ina.folder import RankFileFolder
from offpath.sched.ina.protocol.records import EpochRecord, Grant, Wants

DESCRIPTION: Final = "the INA runtime in a training job: added time, refusals, changes of epoch; agents on a controller"
ADDED_US: Final = 20.0
STEP_SHARE: Final = 0.005
GAP_RATIO: Final = 1.2
"""Of the 99th percentiles with a dead and with a live controller."""
STEP_S: Final = 0.3
"""The step to which the share refers: as in the demonstration of training jobs."""
_RANKS: Final = 2
"""At most the number of cores: more ranks would measure the kernel's scheduler."""
_HOSTS: Final = tuple(range(_RANKS))
_JOB: Final = "bench"
_SEED: Final = 20_261_122


def run(arguments: argparse.Namespace) -> Report:
    """Each part is a function; ``--only PART`` selects one."""
    begun = time.monotonic()
    data: dict[str, Any] = {"benchmark": "ina-live", "quick": arguments.quick, "machine": machine(), "ranks": _RANKS}
    bars: list[Bar] = []
    lines: list[str] = []
    parts: dict[str, Callable[[bool], tuple[dict[str, Any], list[Bar], str]]] = {
        "overhead": overhead, "refusal": refusal, "epochs": epochs, "fabric": fabric,
        "controller": controller, "dead": dead,
    }  # fmt: skip
    for name, part in parts.items():
        if name in (arguments.only or parts):
            print(f"{name} …", file=sys.stderr)
            data[name], found, line = part(arguments.quick)
            bars += found
            lines.append(line)
    data["seconds"] = round(time.monotonic() - begun, 1)
    return Report(data, "\n".join(lines), bars)


# -- the job --------------------------------------------------------------------------------------------------------
class _Job:
    """Ranks that run `ina_live_rank`; ``folder`` is their helper's."""

    def __init__(self, directory: str, **task: Any) -> None:
        state_files = os.path.join(directory, "ina")
        os.makedirs(state_files, mode=0o700, exist_ok=True)
        self.folder = RankFileFolder(state_files)
        settings = {"store": os.path.join(directory, f"store-{time.monotonic_ns()}"), "pages": state_files, "job": _JOB}
        self._ranks = [
            start(
                "bench.ina_live_rank",
                json.dumps({**settings, **task, "rank": rank, "ranks": _RANKS}),
                more={"OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
            )
            for rank in range(_RANKS)
        ]

    def incarnation(self) -> int:
        """The incarnation, once all ranks have a state file."""
        while len(self.folder.states()) < _RANKS:
            if any(each.poll() is not None for each in self._ranks):
                raise RuntimeError("a rank ended before it began: its reason is above")
            self.folder.poll()
            time.sleep(0.02)
        return self.folder.states()[0].incarnation

    def publish(self, epoch: EpochRecord) -> int:
        """Publish an epoch; returns the time, ns."""
        self.folder.poll()
        self.folder.publish(epoch)
        return time.monotonic_ns()

    def results(self) -> list[dict[str, Any]]:
        """Each rank's result, by rank."""
        output = [each.communicate()[0] for each in self._ranks]
        if any(each.returncode for each in self._ranks):
            raise RuntimeError("a rank failed: its reason is above")
        return [json.loads(each) for each in output]

    def end(self) -> None:
        """End the remaining processes."""
        for each in self._ranks:
            each.kill()
            each.wait()
            if each.stdout is not None:
                each.stdout.close()
        self.folder.close()


@contextmanager
def _job(directory: str, **task: Any) -> Iterator[_Job]:
    job = _Job(directory, **task)
    try:
        yield job
    finally:
        job.end()


def _epoch(switches: Switches, incarnation: int, number: int) -> EpochRecord:
    """A grant for all operations, which the switches have received."""
    switches.allow(switches.permissions(_JOB, _HOSTS, incarnation=incarnation, number=number))
    grant = Grant("tree", switches.attach_addresses(_HOSTS), "token")
    return EpochRecord(_JOB, incarnation, 1, number, grant, Wants.ALWAYS)


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 2), "min": round(min(values), 2), "max": round(max(values), 2),
        "n": len(values),
    }  # fmt: skip


# -- parts ----------------------------------------------------------------------------------------------------------
def overhead(quick: bool) -> tuple[dict[str, Any], list[Bar], str]:
    """Three ways, alternating step by step; per block the lowest tenth of its steps (other work on the
    machine only adds), divided by the operations of a step.
    """
    with tempfile.TemporaryDirectory(prefix="offpath-b-") as directory:
        blocks, steps = (20, 30) if quick else (60, 100)
        with _job(directory, part="overhead", blocks=blocks, steps=steps, operations=4, elements=4096) as job:
            found = job.results()
    row: dict[str, Any] = {"operations_per_step": 4, "bytes": 16_384, "blocks": blocks, "steps_per_block": steps}
    for way in ("gloo", "raw", "runtime"):
        row[f"{way}_us"] = _spread([us for each in found for us in each[way]])
    added = [a - b for each in found for a, b in zip(each["runtime"], each["gloo"], strict=True)]
    over_raw = [a - b for each in found for a, b in zip(each["runtime"], each["raw"], strict=True)]
    row["added_us"], row["over_raw_us"] = _spread(added), _spread(over_raw)
    row["share_of_step"] = round(row["added_us"]["median"] * 4 / 1e6 / STEP_S, 6)
    bars = [
        Bar("added per all-reduce where INA is never granted, µs", row["added_us"]["median"], ADDED_US),
        Bar(f"the same, as a share of a step of {STEP_S * 1e3:.0f} ms", row["share_of_step"], STEP_SHARE),
    ]
    text = (
        f"added per all-reduce: {row['added_us']['median']:+.1f} µs over torch's gloo"
        f" ({row['gloo_us']['median']:.0f} µs), {row['over_raw_us']['median']:+.1f} µs over gloo without torch's"
        f" wrapper; {row['share_of_step']:.4%} of a step"
    )
    return row, bars, text


def refusal(quick: bool) -> tuple[dict[str, Any], list[Bar], str]:
    """Meanwhile another job's operation, which never ends, occupies the root's only place."""
    rounds = 4 if quick else 12
    with (
        tempfile.TemporaryDirectory(prefix="offpath-b-") as directory,
        Switches(os.path.join(directory, "s"), leaves=_RANKS) as switches,
        _holder(switches),
        _job(directory, part="steps", steps=25 * rounds, operations=4, elements=65_536, pause_s=0.01) as job,
    ):
        incarnation = job.incarnation()
        for number in range(1, 2 * rounds, 2):
            job.publish(_epoch(switches, incarnation, number))
            time.sleep(0.2)
            job.publish(EpochRecord(_JOB, incarnation, 1, number + 1))
            time.sleep(0.1)
        entries = [entry for each in job.results() for entry in each["timeline"]]
    took = {how: [us for way, us in entries if way == how] for how in ("plain", "refused")}
    row: dict[str, Any] = {"bytes": 262_144, **{f"{how}_us": _spread(each) for how, each in took.items()}}
    row["penalty_us"] = round(row["refused_us"]["median"] - row["plain_us"]["median"], 1)
    return row, [], (
        f"refused: {row['penalty_us']:+.0f} µs over {row['plain_us']['median']:.0f} µs plain"
        f" ({len(took['refused'])} refused, {len(took['plain'])} plain, 256 KiB)"
    )  # fmt: skip


@contextmanager
def _holder(switches: Switches) -> Iterator[None]:
    """A job with a rank that has begun an operation that the other rank never joins."""
    switches.allow(switches.permissions("holder", _HOSTS))
    sessions = [
        SwitchFabric(RateLimiter(), 1e9).attach(
            address, job="holder", incarnation=1, stamp=1 << 32 | 1, rank=rank, ranks=_RANKS, token="token"
        )
        for rank, address in enumerate(switches.attach_addresses(_HOSTS))
    ]
    for each in sessions:
        each.poll(5.0)
    data = memoryview(bytearray(4096))
    sessions[0].start(0, "fp32", data, memoryview(bytearray(4096)))
    sessions[0].poll(0.2)
    try:
        yield
    finally:
        for each in sessions:
            each.close()


def epochs(quick: bool) -> tuple[dict[str, Any], list[Bar], str]:
    """Grants and their ends, alternating, published at any moment of a step of 60 ms."""
    rounds, noise = (10 if quick else 40), random.Random(_SEED)
    with (
        tempfile.TemporaryDirectory(prefix="offpath-b-") as directory,
        Switches(os.path.join(directory, "s"), leaves=_RANKS) as switches,
        _job(directory, part="steps", steps=rounds * 6 + 10, operations=2, elements=4096, pause_s=0.06) as job,
    ):
        incarnation = job.incarnation()
        published: dict[int, int] = {}
        time.sleep(0.2)
        for number in range(1, rounds + 1):
            granted = _epoch(switches, incarnation, number)
            epoch = granted if number % 2 else EpochRecord(_JOB, incarnation, 1, number)
            published[epoch.stamp] = job.publish(epoch)
            time.sleep(0.3 + 0.06 * noise.random())
        seen = job.results()[0]["steps"]
    passed = []
    for stamp, at in published.items():
        begins = [begin for begin, applied in seen if begin > at]
        used = [begin for begin, applied in seen if applied == stamp]
        if used:
            passed.append(float(sum(begin <= used[0] for begin in begins)))
    row: dict[str, Any] = {
        "step_ms": 60, "published": len(published), "applied": len(passed), "boundaries": _spread(passed),
    }  # fmt: skip
    text = (
        f"an epoch is in use at boundary {row['boundaries']['median']:g} after its publication"
        f" ({min(passed):g} … {max(passed):g}, {len(passed)} of {len(published)} epochs)"
    )
    return row, [Bar("boundaries from publication to use, median", statistics.median(passed), 2.0)], text


def fabric(quick: bool) -> tuple[dict[str, Any], list[Bar], str]:
    """See `ina_live_fabric`."""
    row = measure_fabric(60 if quick else 200)
    text = (
        f"fabric alone, 4 ranks: 1 MiB {row['all_reduce_1mib']['median']:.0f} µs"
        f" ({row['all_reduce_1mib_mb_per_s']} MB/s), 4 bytes {row['admission']['median']:.0f} µs, a refusal"
        f" {row['refusal']['median']:.0f} µs"
    )
    return row, [], text


def controller(quick: bool) -> tuple[dict[str, Any], list[Bar], str]:
    """See `ina_live_controller`."""
    row = measure_controller(seconds=5.0 if quick else 20.0)
    text = (
        f"controller, {row['agents']} agents, {row['jobs']} jobs: all connected in {row['all_heard_s']:.1f} s,"
        f" all granted in {row['all_granted_s']:.1f} s; {row['epochs_per_s']:.0f} epochs/s, a change of all"
        f" {row['change_ms']['median']:.0f} ms; CPU at rest {row['cpu_at_rest']:.3f}, {row['rss_mib']:.0f} MiB"
    )
    return row, [], text


def dead(quick: bool) -> tuple[dict[str, Any], list[Bar], str]:
    """See `ina_live_dead`."""
    row = measure_dead(4 if quick else 10, 60)
    text = (
        f"gaps between all-reduces, controller alive / dead: p50 {row['alive']['p50_ms']} / {row['dead']['p50_ms']} ms,"
        f" p99 {row['alive']['p99_ms']} / {row['dead']['p99_ms']} ms ({row['alive']['n']} and {row['dead']['n']} gaps);"
        f" with INA {row['with_ina']['alive']:.0%} / {row['with_ina']['dead']:.0%} of them"
    )
    return row, [Bar("p99 of the gaps, controller dead over alive", row["ratio"], GAP_RATIO)], text
