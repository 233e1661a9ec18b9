"""`offpath whatif JOURNAL|TRACE`: runs the same jobs under another policy or on other GPUs, by the same job book.

A journal gives arrivals, run times, tenants and their rights, settings, GPUs, and the times to open and close
instances; a trace file gives rows. Both sides are simulated, so that they differ in the policy and the GPUs alone. The
journal's recorded latencies are printed beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from dataclasses import replace
from typing import Any, Final

from offpath.bindings.errors import OffpathError
from offpath.cli.files.traces import TraceError, openb, whole_gpus
from offpath.cli.gpus import gpu_spec
from offpath.dpu_daemon.durability.journal import codec
from offpath.dpu_daemon.durability.journal.log import our_schema, replay
from offpath.dpu_daemon.durability.journal.ring import JournalForeign, ReadOnlyFile, Ring
from offpath.dpu_daemon.policy.plugins import DEADLINE_S, PluginProcess
from offpath.sched.errors import SchedError
from offpath.sched.gpu.geometry import GpuSpec
from offpath.sched.gpu.plugin import PREFIX
from offpath.sched.gpu.registry import SIMULATED
from offpath.sched.sim.cluster import paper_settings
from offpath.sched.sim.devices import PAPER
from offpath.sched.sim.whatif import NothingRecorded, Place, Recording, Side, Source, difference, simulate

_MOST_GPUS: Final = 100_000
_PROGRESS_S: Final = 2.0


class WhatIfError(OffpathError):
    """This file does not allow the comparison."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("source", metavar="JOURNAL|TRACE", help="a daemon's journal, or a CSV of jobs (may be gzipped)")
    names = ", ".join(sorted(SIMULATED))
    parser.add_argument("--policy", metavar="NAME", help=f"decide by {names} or {PREFIX}NAME (default: unchanged)")
    parser.add_argument(
        "--plugin-ms", type=int, default=5, metavar="MS", help="time limit of a plug-in's answer (default 5)"
    )
    parser.add_argument("--gpus", metavar="N[:MODEL]", help="on N GPUs, for example 4:A100-40GB (default: unchanged)")
    parser.add_argument("--tenant", metavar="COLUMN", default="vc", help="a trace's column of tenants (default vc)")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def main(arguments: argparse.Namespace) -> int:
    """Simulate both sides, print the differences."""
    if arguments.policy is None and arguments.gpus is None:
        raise WhatIfError("nothing to compare: give --policy, --gpus or both")
    is_trace = arguments.source.removesuffix(".gz").endswith(".csv")
    source = of_trace(arguments.source, arguments.tenant) if is_trace else of_journal(arguments.source)
    gpus = fleet(arguments.gpus) if arguments.gpus else source.gpus
    policy = arguments.policy or source.policy
    plugin_s = arguments.plugin_ms / 1e3
    now = run(source, source.policy, source.gpus, plugin_s)
    then = run(source, policy, gpus, plugin_s)
    data = difference(source, now, then)
    data |= {"policy": [source.policy, policy], "gpus": [len(source.gpus), len(gpus)], "source": arguments.source}
    print(json.dumps(data) if arguments.json else text(data))
    return 0


def fleet(spec: str) -> list[GpuSpec]:
    """``N[:MODEL]`` as GPUs. Raises: WhatIfError; DeviceError: unknown model."""
    count, _, name = spec.partition(":")
    if not count.isdecimal() or len(count) > 9 or not 1 <= int(count) <= _MOST_GPUS:
        raise WhatIfError(f"--gpus {spec}: N[:MODEL] with N from 1 to {_MOST_GPUS}")
    return [gpu_spec(f"gpu-{n}", name or "A100-40GB") for n in range(int(count))]


def of_trace(path: str, tenant: str) -> Source:
    """Rows of fractions (Alibaba 2023's columns) or of whole GPUs; as many A100s as the peak needs.

    Raises: TraceError.
    """
    try:
        stream = openb(path, hours=None)
    except TraceError as fault:
        if "gpu_request_fraction" not in str(fault):
            raise
        stream = whole_gpus(path, tenant=tenant, name=path, hours=None)
    lanes = max(1, 100 // min(job.share for job in stream.jobs))
    gpus = fleet(str(max(1, stream.peak_gpus())))
    # If GPUs are short, needs are checked every second: every millisecond would be too slow for days of trace.
    settings = replace(paper_settings(lanes), grow_after_ns=10**9)
    return Source(stream, gpus, "conspirator-paper", settings, PAPER)


def of_journal(path: str) -> Source:
    """The journal's content from its oldest checkpoint on.

    Raises: JournalError: not a journal, or another build's. WhatIfError: no job in it ran to its end.
    """
    ring = Ring.opened(ReadOnlyFile(path))
    if ring.identity.schema != our_schema():
        raise JournalForeign(f"{path}: another build wrote it; use that build's `offpath whatif`")
    entries = ring.entries(ring.oldest_checkpoint())
    recording = Recording(replay(iter([next(entries)])).book)
    for entry in entries:
        recording.last_ns = entry.time_ns
        if entry.kind != codec.KIND_CHECKPOINT:
            for value in codec.values(entry):
                recording.add(value, entry.time_ns)
    try:
        return recording.source(path)
    except NothingRecorded as fault:
        raise WhatIfError(str(fault)) from None


def run(source: Source, policy: str, gpus: list[GpuSpec], plugin_s: float = DEADLINE_S) -> Side:
    """`simulate`, with the plug-in's process if ``policy`` names one; prints progress every two seconds.

    Raises: WhatIfError: unknown policy. PluginError.
    """
    printed_s = time.monotonic()

    def progress(part: float, alive: int) -> None:
        nonlocal printed_s
        if time.monotonic() - printed_s > _PROGRESS_S:
            printed_s = time.monotonic()
            print(f"{policy}: {part:.0%} of the time, {alive} jobs alive", file=sys.stderr)

    with contextlib.ExitStack() as stack:
        plugin: PluginProcess | None = None
        if policy.startswith(PREFIX):
            plugin = PluginProcess(policy.removeprefix(PREFIX), plugin_s)
            stack.callback(plugin.close)
            plugin.wait()
        try:
            return simulate(source, policy, gpus, plugin, progress)
        except SchedError as fault:
            raise WhatIfError(str(fault)) from None


def text(data: dict[str, Any]) -> str:
    """As text."""

    def pair(name: str, unit: str = "") -> str:
        now, then = data[name]
        return f"{now} → {then}{unit}" if not isinstance(now, float) else f"{now:.3f} → {then:.3f}{unit}"

    never = [f"{data['left_out']} never ran"] if data["left_out"] else []
    never += [f"{data['gangs_left_out']} for several GPUs are not simulated"] if data["gangs_left_out"] else []
    lines = [
        f"{data['jobs']} jobs of {data['source']}" + (f" ({'; '.join(never)})" if never else ""),
        f"policy            {pair('policy')}",
        f"GPUs              {pair('gpus')}",
        f"decisions         {data['decisions_that_differ']} of {data['jobs']} differ",
        f"completed         {pair('completed')}",
        f"latency p50       {pair('p50_ms', ' ms')}",
        f"latency p99       {pair('p99_ms', ' ms')}",
        f"active GPU-hours  {pair('active_gpu_hours')}",
        f"slice-hours       {pair('slice_hours')}",
        f"tenants hurt      {', '.join(data['tenants_hurt']) or 'none'}",
    ]
    for fault in (*data["plugin_faults"][0], *data["plugin_faults"][1]):
        lines.append(f"the plug-in was quarantined, the built-in policy decided: {fault}")
    if data["recorded_p50_ms"] is not None:
        lines.append(f"as recorded       p50 {data['recorded_p50_ms']} ms, p99 {data['recorded_p99_ms']} ms")
    for each in data["first_that_differ"]:
        lines.append(f"  row {each['row']} of {each['tenant']}: {_at(each['now'])} → {_at(each['then'])}")
    return "\n".join(lines)


def _at(place: Place | None) -> str:
    return f"GPU {place[0]} {place[1]} at {place[2]}" if place is not None else "nowhere"
