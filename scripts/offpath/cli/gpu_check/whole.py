"""Check 2: a whole GPU served by daemon, helper and worker, many jobs, a killed worker, and nothing left behind."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

import numpy as np

from offpath.bindings.errors import OffpathError
from offpath.cli.bench.gpu.device import Device
from offpath.cli.bench.gpu.serving import Serving, median
from offpath.cli.bench.gpu.setting import Setting, in_child
from offpath.cli.gpu_check.figures import Figures

_PAYLOAD_BYTES: Final = 4096
_ENDED_S: Final = 30.0
_SLACK_BYTES: Final = 32 << 20
"""Less than a context takes."""


def whole(setting: Setting, figures: Figures) -> None:
    """Serve jobs, kill the worker under way, serve on, end; memory and descriptors are as before."""
    before = in_child("free memory before", lambda: _free(setting))
    figures.add("free memory before", before, "bytes")
    began = time.perf_counter()
    serving = Serving(setting, 1 << 20)
    try:
        figures.add("start of daemon, helper and worker", time.perf_counter() - began, "s")
        _serve_jobs(setting, serving, figures)
        _kill_a_worker(serving, figures)
        figures.expect("the helper holds no descriptor of the driver", *_descriptors(serving.helper))
        with open(f"/proc/{serving.helper}/maps", encoding="utf-8", errors="replace") as maps:
            figures.expect("the helper has not loaded libcuda", "libcuda" not in maps.read())
    finally:
        serving.close()
    slack = 0 if setting.is_emulated else _SLACK_BYTES
    after, until = 0, time.monotonic() + _ENDED_S
    while after < before - slack and time.monotonic() < until:
        after = in_child("free memory after", lambda: _free(setting))
    figures.add("free memory after", after, "bytes")
    figures.expect("all memory is free again", after >= before - slack, f"{before - after} bytes are missing")


def _serve_jobs(setting: Setting, serving: Serving, figures: Figures) -> None:
    jobs = setting.count(10_000, 200)
    random = np.random.default_rng(1)
    payload = random.integers(0, 256, _PAYLOAD_BYTES, np.uint8)
    wrong = 0
    taken = []
    for number in range(jobs):
        payload[:4] = np.frombuffer(np.uint32(number).tobytes(), np.uint8)
        began = time.perf_counter_ns()
        answer = serving.submit("echo", payload)
        taken.append((time.perf_counter_ns() - began) / 1e3)
        wrong += not np.array_equal(answer, payload)
    figures.add("jobs", jobs)
    figures.add("median latency of a 4 KiB echo", median(taken), "µs")
    figures.expect("every answer is its payload", wrong == 0, f"{wrong} of {jobs} wrong")


def _kill_a_worker(serving: Serving, figures: Figures) -> None:
    (worker, *_) = serving.workers()
    os.kill(worker, signal.SIGKILL)
    began, failed = time.perf_counter(), 0
    payload = np.arange(64, dtype=np.uint8)
    while True:
        try:
            answer = serving.submit("echo", payload)
            break
        except OffpathError as fault:  # the request that was in flight, or one before the daemon learnt of the end
            failed += 1
            if time.perf_counter() - began > _ENDED_S:
                figures.expect("a killed worker is replaced", False, fault)
                return
    figures.add("from kill -9 of the worker to the next answer", time.perf_counter() - began, "s")
    figures.add("requests that failed meanwhile", failed)
    figures.expect("a killed worker is replaced", np.array_equal(answer, payload))
    figures.expect("its process is another one", worker not in serving.workers())


def _descriptors(pid: int) -> tuple[bool, str]:
    """Whether the process has none of the driver's device nodes open, and those that it has."""
    folder = f"/proc/{pid}/fd"
    held = []
    for name in os.listdir(folder):
        try:
            target = os.readlink(os.path.join(folder, name))
        except FileNotFoundError:
            continue
        if target.startswith("/dev/nvidia"):
            held.append(target)
    return not held, ", ".join(held)


def _free(setting: Setting) -> int:
    return Device(setting).context.memory()[0]
