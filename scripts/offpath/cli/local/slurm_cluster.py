"""A real Slurm on this machine: slurmctld, a slurmd per pretended node, MUNGE; as this user, without root.

For demonstrations and tests. It uses what `./scripts/slurm-env` unpacks. Its traps: the comments below. Everything ends
with `close`, or with this process.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from offpath.bindings.engines import slurm
from offpath.bindings.errors import EngineUnavailable
from offpath.cli.local.environments import fetched
from offpath.cli.local.reaper import Reaper

BOUND_S: Final = 60.0
_UNPACK_S: Final = 500


def unpacked() -> Path:
    """The folder of `./scripts/slurm-env`; fetched on first use. Raises: EngineMissing."""
    return fetched("slurm-env", "Slurm cannot be unpacked", _UNPACK_S)


def two_leaves(nodes: Sequence[str]) -> dict[str, Sequence[str]]:
    """Half of the nodes below ``s0``, half below ``s1``."""
    half = len(nodes) // 2
    return {"s0": nodes[:half], "s1": nodes[half:]}


class SlurmCluster:
    """Nodes h0, h1, … with two GPUs each (model a100). ``leaves``: gives the nodes below each leaf switch.
    ``slurmd_timeout_s``: after so long without an answer slurmctld takes a node as down.

    Raises: EngineMissing.
    """

    def __init__(
        self, folder: Path, nodes: int = 4, *, has_munge: bool = True,
        leaves: Callable[[Sequence[str]], Mapping[str, Sequence[str]]] = two_leaves, slurmd_timeout_s: int = 5,
    ) -> None:  # fmt: skip
        self.folder, self.nodes = folder, [f"h{n}" for n in range(nodes)]
        self.programs = unpacked() / "bin"
        self._daemons = Reaper(folder / "log")
        self._has_munge = has_munge
        self._leaves = leaves(self.nodes)
        self._slurmd_timeout_s = slurmd_timeout_s
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
        ports = self._ports
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
            SlurmdTimeout={self._slurmd_timeout_s}
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
        switches = [f"SwitchName={name} Nodes={','.join(nodes)}\n" for name, nodes in self._leaves.items()]
        core = f"SwitchName=core Switches={','.join(self._leaves)}\n"
        (self.folder / "topology.conf").write_text("".join(switches) + (core if len(switches) > 1 else ""))
        plugin = slurm.PLUGIN.read_text().replace("[0] = true", f"[{os.geteuid()}] = true")
        (self.folder / "job_submit.lua").write_text(plugin)

    # -- processes ------------------------------------------------------------------------------------------------
    def open(self) -> None:
        """All daemons; every node is idle when it returns. Raises: EngineUnavailable."""
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
        self._daemons.start(name, [self.programs / command[0], *command[1:]], self.environment, self.folder)

    def kill(self, name: str) -> None:
        """SIGKILL to ``slurmctld`` or the slurmd of a node."""
        self._daemons.kill(name)

    def mend(self) -> None:
        """Every daemon runs, every node takes jobs."""
        missing = [name for name in ("slurmctld", *self.nodes) if name not in self._daemons.running]
        for name in missing:
            self.start(name)
        self.until_answers()
        if missing or "drain" in self.command("sinfo", "-h", "-N", "-o", "%T"):
            self._resume()
            self._until(self._is_mended, "nodes are not ready")

    def _resume(self) -> None:
        self.try_command("scontrol", "update", f"nodename={','.join(self.nodes)}", "state=resume")

    def _is_mended(self) -> bool:
        """A slurmctld that forgot a job drains its node when that registers; its operator takes it back."""
        states = self.try_command("sinfo", "-h", "-N", "-o", "%T").stdout
        if "drain" in states:
            self._resume()
        return bool(states) and not _is_bad(states)

    def close(self) -> None:
        """End all daemons and all jobs."""
        self._daemons.close()

    # -- commands -------------------------------------------------------------------------------------------------
    def command(self, *words: str, stdin: str = "", timeout: float = 30.0) -> str:
        """A command of Slurm; its stdout. Raises: EngineUnavailable: it failed."""
        done = self.try_command(*words, stdin=stdin, timeout=timeout)
        if done.returncode:
            raise EngineUnavailable(f"{words}: {done.stderr}")
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
            if time.monotonic() > ends:
                raise EngineUnavailable(f"{what}:\n{self.log()[-4000:]}")
            time.sleep(0.05)

    def log(self) -> str:
        """What the daemons wrote."""
        return (self.folder / "log").read_text(errors="replace")


def _is_bad(states: str) -> bool:
    return any(word in states for word in ("drain", "down", "unk", "*"))


def _free_ports(count: int) -> list[int]:
    """Free now; below the ports that the kernel gives to clients."""
    found: list[int] = []
    for port in range(20_000 + os.getpid() % 5_000, 32_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise EngineUnavailable("no free ports")
