"""Check 11: MPS. Answers of the control program, percentages, limits, and how far the end of one client reaches."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
from contextlib import ExitStack
from typing import Any, Final

import orjson

from offpath.bindings.cuda.driver import OUT_OF_MEMORY
from offpath.bindings.errors import DeviceError
from offpath.cli.bench.gpu.setting import Setting
from offpath.cli.gpu_check.figures import Figures
from offpath.cli.gpu_check.mps_control import PIPES, Client, Control
from offpath.cli.local.child import command, environment

_PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_LIMIT: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_COMMANDS: Final = (
    "get_server_list", "ps", "get_client_list 4711", "get_default_active_thread_percentage",
    "set_default_active_thread_percentage 50", "set_default_active_thread_percentage 0",
    "set_default_active_thread_percentage 100.5", "set_default_active_thread_percentage 100",
    "set_active_thread_percentage 4711 10", "get_default_device_pinned_mem_limit 0",
    "set_default_client_priority 5", "get_server_status 1",
)  # fmt: skip
_LOAD_S: Final = 35.0


def mps(setting: Setting, figures: Figures) -> None:
    """Each part has a control daemon of its own: a fault of one part is not seen by the next."""
    for name, part in _PARTS.items():
        try:
            with Control(setting) as control:
                part(setting, control, figures)
                if name == "answers":
                    figures.add("logs", control.logs())
        except DeviceError as fault:
            figures.expect(name, False, fault)
    if not setting.is_emulated and not setting.is_quick and importlib.util.find_spec("torch") is not None:
        with Control(setting) as control:
            _throughput(setting, control, figures)


def _answers(setting: Setting, control: Control, figures: Figures) -> None:
    for text in _COMMANDS[:3] if setting.is_quick else _COMMANDS:
        code, out, err = control.run(commands=f"{text}\n")
        figures.add(f"answer: {text}", [code, out or err])
    figures.add("answer: -d again", list(control.run("-d")))


def _percentages(setting: Setting, control: Control, figures: Figures) -> None:
    """The multiprocessors that a client sees, by its percentage."""
    found = {}
    for percentage in (100,) if setting.is_quick else range(10, 101, 10):
        client = Client(setting, {**control.environment, _PERCENTAGE: str(percentage)})
        found[percentage] = client.facts
        client.finish()
    figures.add("multiprocessors by percentage", {str(p): facts["sms"] for p, facts in found.items()})
    figures.expect("clients are under MPS (attribute 133)", all(facts["mps"] == 1 for facts in found.values()), found)


def _limits(setting: Setting, control: Control, figures: Figures) -> None:
    limit = setting.nbytes // 8 >> 20
    client = Client(setting, {**control.environment, _LIMIT: f"0={limit}M"})
    small, large = client.do("allocate", (limit << 20) // 4), client.do("allocate", limit << 21)
    client.finish()
    figures.add(f"codes below and above a limit of {limit} MiB", [small, large])
    figures.expect("the memory limit holds", (small, large) == (0, OUT_OF_MEMORY), [small, large])


def _fail_open(setting: Setting, control: Control, figures: Figures) -> None:
    """A client that does not find its daemon runs without MPS and is not told; the attribute tells."""
    empty = os.path.join(control.folder, "none")
    os.mkdir(empty, 0o700)
    client = Client(setting, {**control.environment, PIPES: empty})
    figures.add("a client without a daemon", client.facts)
    figures.expect("a client without a daemon is recognised by attribute 133", client.facts["mps"] == 0)
    client.finish()


def _fault(setting: Setting, control: Control, figures: Figures) -> None:
    """A kernel of one client faults: codes of both, and of one that comes then and afterwards."""
    with ExitStack() as stack:
        one, two = (_client(stack, setting, control) for _ in range(2))
        figures.add("code of the client that faults", one.do("fault"))
        figures.add("code of its neighbour", two.do("empty"))
        figures.add("a new client beside them", _attempt(setting, control))
    figures.add("a new client after both have ended", _attempt(setting, control))


def _kill(setting: Setting, control: Control, figures: Figures) -> None:
    """SIGKILL of a client with work outstanding."""
    with ExitStack() as stack:
        one, two = (_client(stack, setting, control) for _ in range(2))
        one.do("queue")
        os.kill(one.pid, signal.SIGKILL)
        figures.add("neighbour of a killed client", two.do("empty"))
        figures.add("a new client after SIGKILL", _attempt(setting, control))
    control.stop()
    control.start()
    restarted = _attempt(setting, control)
    figures.expect("a restarted daemon serves again", restarted == 0, restarted)


def _terminate(setting: Setting, control: Control, figures: Figures) -> None:
    with ExitStack() as stack:
        one, two = (_client(stack, setting, control) for _ in range(2))
        _, servers, _ = control.run(commands="get_server_list\n")
        server = servers.split()[0] if servers else "0"
        figures.add("answer: terminate_client", list(control.run(commands=f"terminate_client {server} {one.pid}\n")))
        figures.add("code of the terminated client", one.do("empty"))
        code = two.do("empty")
        figures.expect("its neighbour goes on", code == 0, code)


def _client(stack: ExitStack, setting: Setting, control: Control) -> Client:
    client = Client(setting, control.environment)
    stack.callback(client.close)
    return client


def _attempt(setting: Setting, control: Control) -> int | str:
    """The code of an empty kernel of a new client, or why there is none."""
    try:
        client = Client(setting, control.environment)
    except DeviceError as fault:
        return str(fault)
    code = client.do("empty")
    client.finish()
    return code


_PARTS: Final = {
    "answers": _answers, "percentages": _percentages, "limits": _limits, "fail-open": _fail_open, "fault": _fault,
    "kill": _kill, "terminate": _terminate,
}  # fmt: skip


def _throughput(setting: Setting, control: Control, figures: Figures) -> None:
    """A product of matrices and a small model with torch: alone, at half of the GPU, and two at half each."""
    for name, percentages in {"alone, 100 %": (100,), "alone, 50 %": (50,), "a pair, 50 % each": (50, 50)}.items():
        running = [
            subprocess.Popen(
                command("gpu_check.mps_load"), stdout=subprocess.PIPE,
                env=environment({**control.environment, _PERCENTAGE: str(percentage)}),
            )
            for percentage in percentages
        ]  # fmt: skip
        found: list[Any] = []
        for process in running:
            try:
                out, _ = process.communicate(timeout=_LOAD_S)
                found.append(orjson.loads(out) if process.returncode == 0 else f"code {process.returncode}")
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                found.append(f"no result within {_LOAD_S:.0f} s")
        figures.add(f"torch, {name}", found)
