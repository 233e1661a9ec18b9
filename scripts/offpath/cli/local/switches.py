"""A tree of emulated switches on this machine, one process each: for demonstrations, benchmarks and tests.

The default is the testbed of MINA (figure 10): five switches, one of them the root, and four hosts, one at each leaf.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from offpath.bindings.errors import PeerGone
from offpath.cli.local.child import COMMAND_LINE, start
from offpath.dpu_daemon.switch.control import SwitchControl
from offpath.sched.ina.protocol.records import Permission

ROOT: Final = "s0"
_START_S: Final = 30.0


class Switches:
    """A context manager. ``directory`` holds sockets, logs and event files.

    ``faults``: switch → faults to arm, as for `--fault`. ``tcp``: TCP sockets instead of Unix sockets.
    """

    def __init__(
        self, directory: str, *, leaves: int = 4, capacity: int = 1, order: str = "rank",
        faults: Mapping[str, str] | None = None, tcp: bool = False,
    ) -> None:  # fmt: skip
        self.directory = directory
        self.names: Final = [f"s{number}" for number in range(leaves + 1)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.addresses: dict[str, str] = {}
        self.controls: dict[str, SwitchControl] = {}
        self._capacity, self._order, self._tcp = capacity, order, tcp
        self._faults = dict(faults or {})

    def __enter__(self) -> Switches:
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        try:
            for name in self.names:
                self._start(name)
            for name in self.names:
                self._await(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes in order, wait, and kill those that do not end. Idempotent."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def restart(self, name: str) -> None:
        """Restart a switch without its fault; its state is lost."""
        self.processes[name].kill()
        self.processes[name].wait()
        self._faults.pop(name, None)
        self._start(name)
        self._await(name)

    def path(self, name: str, what: str) -> str:
        """A file of the switch: ``log``, ``events``, ``stats`` (once it has ended), and its sockets."""
        return os.path.join(self.directory, f"{name}.{what}")

    def _start(self, name: str) -> None:
        listen, control = (
            "tcp://127.0.0.1:0" if self._tcp else f"unix://{self.path(name, what)}" for what in ("sock", "control")
        )
        words = ["-v", "switch", "run", "--name", name, "--json"]
        words += ["--listen", listen, "--control", control, "--capacity", str(self._capacity)]
        words += ["--order", self._order, "--log", "json", "--events", self.path(name, "events")]
        words += [f"--fault={each}" for each in self._faults.get(name, "").split()]
        with open(self.path(name, "log"), "w") as log, open(self.path(name, "stats"), "w") as stats:
            self.processes[name] = start(COMMAND_LINE, *words, stdout=stats, stderr=log)

    def _await(self, name: str) -> None:
        until = time.monotonic() + _START_S
        while time.monotonic() < until and self.processes[name].poll() is None:
            with open(self.path(name, "log"), encoding="utf-8") as log:
                ready = next((line for line in log if line.startswith("offpath switch") and line.endswith("\n")), "")
            if ready:
                listen, _, control = ready.partition(" ready at ")[2].rstrip(")\n").partition(" (control ")
                self.addresses[name], self.controls[name] = listen, SwitchControl(control)
                return
            time.sleep(0.02)
        raise PeerGone(f"switch {name} did not start: see {self.path(name, 'log')}")

    # -- trees --------------------------------------------------------------------------------------------------------
    def permissions(
        self, job: str, hosts: Sequence[int], *, incarnation: int = 1, term: int = 1, number: int = 1,
        token: str = "token", group: str = "",
    ) -> dict[str, Permission]:  # fmt: skip
        """The permission for each switch of the job's tree. ``hosts``: by rank, from 0; host h is at leaf h + 1."""
        at: dict[str, list[int]] = {}
        for rank, host in enumerate(hosts):
            at.setdefault(self.names[host + 1], []).append(rank)
        common: dict[str, Any] = {
            "job": job, "incarnation": incarnation, "term": term, "stamp": term << 32 | number, "token": token,
            "ranks": len(hosts),
        }  # fmt: skip
        below = tuple((name, tuple(ranks)) for name, ranks in at.items())
        found = {ROOT: Permission(**common, below=below, group=group)}
        for name, ranks in at.items():
            found[name] = Permission(**common, parent=self.addresses[ROOT], local=tuple(ranks), group=group)
        return found

    def allow(self, permissions: Mapping[str, Permission]) -> None:
        """Send the permissions to the switches. Raises: PeerGone, SwitchRefused."""

        async def report() -> None:
            for name, permission in permissions.items():
                await self.controls[name].allow(permission)

        asyncio.run(report())

    def attach_addresses(self, hosts: Sequence[int]) -> tuple[str, ...]:
        """The addresses to attach to, by rank."""
        return tuple(self.addresses[self.names[host + 1]] for host in hosts)

    def stats(self, name: str = ROOT) -> dict[str, Any]:
        """See `SwitchControl.stats`."""
        return asyncio.run(self.controls[name].stats())
