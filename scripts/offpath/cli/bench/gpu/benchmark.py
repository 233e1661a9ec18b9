"""`gpu`: requests through daemon, helper and worker on a GPU, beside direct calls of the driver.

On a GPU: latencies over a direct launch with its wait, and over a plain copy. On the GPU emulator no times: how often a
request calls the driver, by kind, and how many of its bytes the daemon's CPU copies. Both with the copy engines of a
machine without a DPU: `loopback`, which copies into pinned host memory for the worker, and `cuda`.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Final

import numpy as np

from offpath.bindings.errors import NoGpu
from offpath.cli.bench.command import Bar, Report
from offpath.cli.bench.gpu.device import Device
from offpath.cli.bench.gpu.direct import BAR, direct_us
from offpath.cli.bench.gpu.serving import COUNTED, KERNEL_MS, Serving, median
from offpath.cli.bench.gpu.setting import Setting, find, in_child
from offpath.cli.bench.measure import machine, ratio

DESCRIPTION: Final = "requests on an NVIDIA GPU over direct launches and copies; on the emulator, calls per request"
SMALL: Final = 4096
COPIES: Final = {"600 KB": 614_400, "19.66 MB": 19_660_800}
ENGINES: Final = ("loopback", "cuda")
_COUNTED_REQUESTS: Final = 20
_NEVER: Final = ("allocations", "contexts", "objects")
"""Kinds of calls that no request makes."""
_LIMIT_S: Final = 120.0


def run(arguments: argparse.Namespace) -> Report:
    """Raises: NoGpu: CUDA shows no device. OffpathError: daemon or helper do not start."""
    setting = find(is_quick=arguments.quick)
    if not setting.uuid:
        raise NoGpu(f"no GPU to measure: {setting.problem}; without one: ./scripts/bench gpu --emulated")
    here = machine()  # before forks
    report = _counts(setting) if setting.is_emulated else times(setting)
    report.data |= {
        "benchmark": "gpu", "quick": arguments.quick, "machine": here, "gpu": setting.name,
        "is_emulated": setting.is_emulated,
    }  # fmt: skip
    return report


# -- the emulator: calls ----------------------------------------------------------------------------------------------
def _counts(setting: Setting) -> Report:
    calls: dict[str, dict[str, dict[str, float]]] = {}
    by_cpu: dict[str, dict[str, float]] = {}
    for engine in ENGINES:
        serving = Serving(setting, max(COPIES.values()), engine=engine)
        try:
            counted = {name: _calls(serving, nbytes) for name, nbytes in {"4 KiB": SMALL, **COPIES}.items()}
        finally:
            serving.close()
        calls[engine] = {name: row for name, (row, _) in counted.items()}
        by_cpu[engine] = {name: nbytes for name, (_, nbytes) in counted.items()}
    lines = [
        "EMULATED: calls of the driver per request; times of the emulator say nothing and are not taken",
        f"{'':12}{'engine':>10}{'copies':>8}{'launches':>10}{'waits':>7}{'others':>8}{'bytes by host CPU':>20}",
    ]
    bars = []
    for name in calls[ENGINES[0]]:
        for engine in ENGINES:
            row, nbytes = calls[engine][name], by_cpu[engine][name]
            kinds = {kind: sum(row.get(each, 0.0) for each in names) for kind, names in COUNTED.items()}
            usual = [kinds.pop(kind) for kind in ("copies", "launches", "waits")]
            lines.append(
                f"  {name:10}{engine:>10}{usual[0]:>8g}{usual[1]:>10g}{usual[2]:>7g}{sum(kinds.values()):>8g}"
                f"{nbytes:>20.0f}"
            )
            bars += [Bar(f"{kind} per request of {name}, {engine}", kinds[kind], 0.0) for kind in _NEVER]
            bars.append(Bar(f"further copies per request of {name}, {engine}", usual[0] - 1.0, 0.0))
        bars.append(Bar(f"bytes of {name} copied by the host CPU, cuda", by_cpu["cuda"][name], 0.0))
    return Report({"calls_per_request": calls, "cpu_copied_bytes_per_request": by_cpu}, "\n".join(lines), bars)


def _calls(serving: Serving, nbytes: int) -> tuple[dict[str, float], float]:
    """Calls per request of ``nbytes`` with one launch, without those of the requests that count; and bytes that the
    daemon's CPU copied per request."""
    payload = np.ones(nbytes, np.uint8)
    serving.submit("k0", payload)
    empty = _difference(serving.calls(), serving.calls())
    before, copied = serving.calls(), serving.bytes_by_cpu()
    for _ in range(_COUNTED_REQUESTS):
        serving.submit("k0", payload)
    copied = serving.bytes_by_cpu() - copied
    made = _difference(before, serving.calls())
    calls = {name: (n - empty.get(name, 0)) / _COUNTED_REQUESTS for name, n in made.items() if n - empty.get(name, 0)}
    return calls, copied / _COUNTED_REQUESTS


def _difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


# -- a GPU: times -----------------------------------------------------------------------------------------------------
def times(setting: Setting) -> Report:
    """Latencies beside direct calls, with the bar. Raises: OffpathError."""
    blocks = 3 if setting.is_quick else 7
    serving = Serving(setting, max(COPIES.values()))
    try:
        for kernel_ms in KERNEL_MS:  # the first launch of a kernel compiles it
            serving.times_us(f"k{kernel_ms}", np.ones(SMALL, np.uint8), 5)
        launches = _launch_rows(setting, serving, blocks)
        copies = _copy_rows(setting, serving, blocks, "")
    finally:
        serving.close()
    serving = Serving(setting, max(COPIES.values()), engine="cuda")
    try:
        copies |= _copy_rows(setting, serving, blocks, ", cuda")
    finally:
        serving.close()
    lines = [f"{setting.name}; medians over {blocks} blocks", f"{'':18}{'direct µs':>12}{'request µs':>12}{'ratio':>8}"]
    for name, row in (launches | copies).items():
        over = row["over"]["median"]
        lines.append(f"  {name:16}{row['direct_us']:>12.1f}{row['request_us']:>12.1f}{over:>8.3f}")
    longest = f"{max(KERNEL_MS)} ms"
    bar = Bar(f"request over direct launch, kernel of {longest}", launches[longest]["over"]["median"], BAR)
    return Report({"launches": launches, "copies": copies}, "\n".join(lines), [bar])


def _launch_rows(setting: Setting, serving: Serving, blocks: int) -> dict[str, dict[str, Any]]:
    """A request of 4 KiB over a launch and its wait, without any copy, in neighbouring blocks."""
    counts = {kernel_ms: setting.count(100 if kernel_ms else 500, 30) for kernel_ms in KERNEL_MS}
    direct: dict[str, list[float]] = {str(kernel_ms): [] for kernel_ms in KERNEL_MS}
    request: dict[str, list[float]] = {str(kernel_ms): [] for kernel_ms in KERNEL_MS}
    payload = np.ones(SMALL, np.uint8)
    for _ in range(blocks):
        for name, taken in in_child("direct launches", partial(direct_us, setting, counts), _LIMIT_S).items():
            direct[name].append(taken)
        for kernel_ms, count in counts.items():
            request[str(kernel_ms)].append(median(serving.times_us(f"k{kernel_ms}", payload, count)))
    return {f"{name} ms": _row(direct[name], request[name]) for name in direct}


def _copy_rows(setting: Setting, serving: Serving, blocks: int, engine: str) -> dict[str, dict[str, Any]]:
    """A request with this payload and an empty kernel over a plain `cuMemcpyHtoD` of as many bytes. ``engine`` ends
    the rows' names."""
    direct: dict[str, list[float]] = {name: [] for name in COPIES}
    request: dict[str, list[float]] = {name: [] for name in COPIES}
    for _ in range(blocks):
        taken = in_child("plain copies", partial(_plain_us, setting), _LIMIT_S)
        for name, nbytes in COPIES.items():
            direct[name].append(taken[name])
            count = setting.count(100, 30) if nbytes < 1 << 20 else 20
            request[name].append(median(serving.times_us("k0", np.ones(nbytes, np.uint8), count)))
    return {f"{name}{engine}": _row(direct[name], request[name]) for name in COPIES}


def _plain_us(setting: Setting) -> dict[str, float]:
    """Median time of a copy from pageable memory."""
    device = Device(setting)
    found = {}
    for name, nbytes in COPIES.items():
        content = np.ones(nbytes, np.uint8)
        pointer = device.allocate(nbytes)
        copy = partial(device.call, "cuMemcpyHtoD", pointer, content.ctypes.data, nbytes)
        found[name] = median([device.timed(copy) * 1e6 for _ in range(30)])
        device.call("cuMemFree", pointer)
    return found


def _row(direct: list[float], request: list[float]) -> dict[str, Any]:
    return {"direct_us": median(direct), "request_us": median(request), "over": ratio(request, direct)}
