"""A real Slurm on this machine: slurmctld, a slurmd per pretended node, MUNGE; as this user, without root.

What `./scripts/slurm-env` unpacks is used. Its traps: the comments below. Everything ends with `close`: the processes
are children of this one, and slurmstepd processes that outlived them are found by their SLURM_CONF.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from offpath.bindings.engines import slurm

from .sources import ROOT

BOUND_S: Final = 60.0
SWITCHES: Final = "SwitchName=s0 Nodes={0}\nSwitchName=s1 Nodes={1}\nSwitchName=core Switches=s[0-1]\n"


def unpacked() -> Path:
    """The folder of `./scripts/slurm-env`; fetched on first use."""
    done = subprocess.run([ROOT / "scripts" / "slurm-env"], capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


class SlurmCluster:
    """Nodes h0, h1, … with two GPUs each (model a100), half of them below switch s0 and half below s1."""

    def __init__(self, folder: Path, nodes: int = 4, *, has_munge: bool = True) -> None:
        self.folder, self.nodes = folder, [f"h{n}" for n in range(nodes)]
        self.programs = unpacked() / "bin"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._has_munge = has_munge
        self._log = (folder / "log").open("ab")
        self._ports = _free_ports(nodes + 1)
        self._write()
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": os.environ["PATH"]}

    def _write(self) -> None:
        user, host = pwd.getpwuid(os.geteuid()).pw_name, socket.gethostname().split(".")[0]
        for name in ("state", "spool", "dev", "once"):
            (self.folder / name).mkdir()
        for index in range(2):
            # gres.conf wants a character device; a plain file would leave CUDA_VISIBLE_DEVICES unset.
            (self.folder / "dev" / f"g{index}").symlink_to("/dev/null")
        plugins = next((self.programs.parent / "root/usr/lib").glob("*/slurm-wlm"))
        way = "munge" if self._has_munge else "none"
        ports, last = self._ports, len(self.nodes) - 1
        half = len(self.nodes) // 2
        lines = f"""
            ClusterName=offpath
            SlurmctldHost={host}(127.0.0.1)
            SlurmctldPort={ports[0]}
            SlurmUser={user}
            SlurmdUser={user}
            AuthType=auth/{way}
            CredType=cred/{way}
            PluginDir={plugins}
            StateSaveLocation={self.folder}/state
            SlurmdSpoolDir={self.folder}/spool/%n
            SlurmctldPidFile={self.folder}/ctld.pid
            SlurmdPidFile={self.folder}/%n.pid
            SlurmdParameters=config_overrides
            ProctrackType=proctrack/pgid
            TaskPlugin=task/none
            JobAcctGatherType=jobacct_gather/none
            MpiDefault=none
            ReturnToService=2
            SlurmdTimeout=5
            MessageTimeout=2
            KillWait=2
            SchedulerType=sched/backfill
            SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_interval=1
            SelectType=select/cons_tres
            SelectTypeParameters=CR_Core
            TopologyPlugin=topology/tree
            GresTypes=gpu
            JobSubmitPlugins=lua
            PartitionName=offpath Nodes=ALL Default=YES MaxTime=INFINITE
        """
        text = "\n".join(line.strip() for line in lines.splitlines()).strip() + "\n"
        if self._has_munge:
            text += f"AuthInfo=socket={self.folder}/munge/socket\n"
        for name, port in zip(self.nodes, ports[1:], strict=True):
            text += (
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=1000"
                " Gres=gpu:a100:2\n"
            )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text(f"Name=gpu Type=a100 File={self.folder}/dev/g[0-1]\n")
        (self.folder / "topology.conf").write_text(SWITCHES.format(f"h[0-{half - 1}]", f"h[{half}-{last}]"))
        plugin = slurm.PLUGIN.read_text().replace("[0] = true", f"[{os.geteuid()}] = true")
        (self.folder / "job_submit.lua").write_text(plugin)

    # -- processes ------------------------------------------------------------------------------------------------
    def open(self) -> None:
        """All daemons; every node is idle when it returns."""
        if self._has_munge:
            self._start_munge()
        self.start("slurmctld", "-c")
        for node in self.nodes:
            self.start(node)
        self.until_idle()

    def _start_munge(self) -> None:
        place = self.folder / "munge"
        place.mkdir(mode=0o711)
        (place / "key").write_bytes(os.urandom(1024))
        (place / "key").chmod(0o600)
        self._spawn("munged", [
            "munged", "-F", "-f", f"--key-file={place}/key", f"--socket={place}/socket", f"--pid-file={place}/pid",
            f"--log-file={place}/log", f"--seed-file={place}/seed",
        ])  # fmt: skip
        self._until(lambda: (place / "socket").exists(), "munged does not listen")

    def start(self, name: str, *options: str) -> None:
        """``slurmctld``, or the slurmd of a node."""
        if name == "slurmctld":
            self._spawn(name, ["slurmctld", "-D", *options])
        else:
            stepd = self.programs.parent / "links" / "slurmstepd"
            self._spawn(name, ["slurmd", "-D", "-N", name, "-d", str(stepd), *options])

    def _spawn(self, name: str, command: list[str]) -> None:
        self._running[name] = subprocess.Popen(
            [self.programs / command[0], *command[1:]],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=self.environment, cwd=self.folder,
        )  # fmt: skip

    def kill(self, name: str) -> None:
        """SIGKILL to ``slurmctld`` or the slurmd of a node."""
        with self._running.pop(name) as process:
            process.kill()

    def close(self) -> None:
        """Cancel what runs, then end all daemons."""
        if "slurmctld" in self._running:
            with contextlib.suppress(subprocess.SubprocessError, AssertionError):
                self.command("scancel", "--full", "--user", pwd.getpwuid(os.geteuid()).pw_name, timeout=10)
                self._until(lambda: not self.command("squeue", "-h").strip(), "jobs are left", 10)
        for name in list(self._running):
            self._running[name].terminate()
        for name in list(self._running):
            try:
                self._running[name].wait(5)
            except subprocess.TimeoutExpired:
                self._running[name].kill()
            with self._running.pop(name):
                pass
        for pid in self.strays():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._log.close()

    def strays(self) -> list[int]:
        """slurmstepd, and what it started: processes with this cluster's SLURM_CONF that are not its daemons."""
        ours = {process.pid for process in self._running.values()}
        return [pid for pid in _with(f"SLURM_CONF={self.folder}/slurm.conf") if pid not in ours]

    # -- commands -------------------------------------------------------------------------------------------------
    def command(self, *words: str, stdin: str = "", timeout: float = 30.0) -> str:
        """A command of Slurm; its stdout. It must succeed."""
        done = self.try_command(*words, stdin=stdin, timeout=timeout)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def try_command(self, *words: str, stdin: str = "", timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
        """A command of Slurm."""
        return subprocess.run(
            [self.programs / words[0], *words[1:]], input=stdin, env=self.environment, cwd=self.folder,
            capture_output=True, text=True, check=False, timeout=timeout,
        )  # fmt: skip

    def until_idle(self) -> None:
        """Every node is idle."""
        self._until(
            lambda: self.try_command("sinfo", "-h", "-N", "-o", "%T").stdout.split() == ["idle"] * len(self.nodes),
            "nodes are not idle",
        )

    def until_answers(self) -> None:
        """slurmctld answers."""
        self._until(lambda: self.try_command("scontrol", "ping").returncode == 0, "slurmctld does not answer")

    def _until(self, claim: Callable[[], bool], what: str, bound_s: float = BOUND_S) -> None:
        ends = time.monotonic() + bound_s
        while not claim():
            assert time.monotonic() < ends, f"{what}:\n{self.log()[-4000:]}"
            time.sleep(0.05)

    def log(self) -> str:
        """What the daemons wrote."""
        return (self.folder / "log").read_text(errors="replace")


def _free_ports(count: int) -> list[int]:
    """Free now; below the ports that the kernel gives to clients."""
    found: list[int] = []
    for port in range(20_000 + os.getpid() % 5_000, 32_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")


def _with(variable: str) -> Iterator[int]:
    """Processes that have this in their environment."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if variable.encode() in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    yield int(name)
