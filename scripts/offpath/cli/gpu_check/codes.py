"""Check 12: codes of the recorded calls beside the emulator's, and a faulting kernel: its code, Xid and successor."""

from __future__ import annotations

import os
import select
import time
from typing import Any, Final

from offpath.bindings.errors import DeviceError
from offpath.bindings.nvml.events import XidEvents
from offpath.bindings.nvml.session import Nvml
from offpath.cli.bench.gpu.device import Device, code_of
from offpath.cli.bench.gpu.kernels import EMPTY, FAULT
from offpath.cli.bench.gpu.setting import Setting
from offpath.cli.bench.measure import end, fork
from offpath.cli.gpu_check.call_script import Section, read, replay
from offpath.cli.gpu_check.figures import Figures

_XID_MS: Final = 15_000
_READY_S: Final = 20.0


def codes(setting: Setting, figures: Figures) -> None:
    """Replay every section, print every difference, then fault."""
    calls = same = 0
    for section in read():
        found = replay(section)
        calls += len(section.calls)
        same += sum(code == recorded for code, (_, _, recorded) in zip(found, section.calls, strict=False))
        for line in differences(section, found):
            figures.add(f"differs, {section.name}", line)
    figures.add("recorded calls", calls)
    figures.add("calls with the recorded code", same)
    if setting.is_emulated:
        figures.expect("the emulator returns what was recorded of it", same == calls, f"{calls - same} differ")
    _fault(setting, figures)


def differences(section: Section, found: list[int | str]) -> list[str]:
    """A line for each call whose code is another one, and one if the process ended before the last call."""
    lines = [
        f"{number}: {name}({', '.join(map(str, arguments))}) is {code}, recorded {recorded}"
        for number, ((name, arguments, recorded), code) in enumerate(zip(section.calls, found, strict=False))
        if code != recorded
    ]
    if len(found) < len(section.calls):
        lines.append(f"{len(found)}: {section.calls[len(found)][0]} ended the process")
    return lines


def _fault(setting: Setting, figures: Figures) -> None:
    """A store to address 0, seen by its process, by NVML and by the next process."""
    reading, writing = os.pipe()
    watcher = fork(None, lambda: _watch(writing))
    os.close(writing)
    try:
        can_watch = _next(reading, _READY_S) == "ready"
        if not can_watch:
            figures.add("Xid events", "not possible: NVML registers none here")
        found: dict[str, Any] = figures.attempt("a kernel that faults", lambda: _faulted(setting)) or {}
        for name, code in found.items():
            figures.add(name, code)
        figures.expect("the fault is one code that stays", len({*found.values()} - {0}) == 1, found)
        began = time.perf_counter()
        works = figures.attempt("the next process", lambda: _works(setting))
        figures.add("from the fault to a kernel of the next process", time.perf_counter() - began, "s")
        figures.expect("the next process works", works is True)
        if can_watch:
            figures.add("Xid of the fault", _next(reading, _XID_MS / 1e3 + 1) or "none")
    finally:
        os.close(reading)
        end(watcher)


def _watch(writing: int) -> None:
    try:
        nvml = Nvml()
        events = XidEvents(nvml, [gpu.uuid for gpu in nvml.gpus()])
        os.write(writing, b"ready\n" if events.watched else b"no\n")
        event = events.wait(_XID_MS)
        os.write(writing, (f"{event.xid}\n" if event else "none\n").encode())
    except DeviceError:
        os.write(writing, b"no\n")


def _next(reading: int, limit_s: float) -> str:
    if not select.select([reading], [], [], limit_s)[0]:
        return ""
    return os.read(reading, 64).decode().split("\n")[0]


def _faulted(setting: Setting) -> dict[str, int]:
    device = Device(setting)
    kernel = device.kernel(FAULT)
    other = device.call("cuStreamCreate", 1)
    return {
        "code of the faulting launch": code_of(kernel.launch),
        "code of the wait": code_of(device.wait),
        "code of the next wait": code_of(device.wait),
        "code of another stream": code_of(lambda: device.call("cuStreamSynchronize", other)),
        "code of an allocation": code_of(lambda: device.call("cuMemAlloc", 4096)),
        "code of cuMemGetInfo": code_of(lambda: device.call("cuMemGetInfo")),
    }


def _works(setting: Setting) -> bool:
    device = Device(setting)
    device.kernel(EMPTY).launch()
    device.wait()
    return True
