"""What the engine `ray` runs in a Ray cluster: an actor per node that supervises jobs, and a task per place of a job.

The driver (`ray_driver`) sends this module by value: the nodes need no offpath.

A supervisor is a detached actor, named by its node and pinned to it, of the jobs whose first place is that node. It
outlives the controller and its driver; it dies with its node, and Ray never starts it again (max_restarts=0). It owns
the jobs' placement groups and tasks: what owns dies with its owner, so nothing of a job outlives its supervisor. One
supervisor per node, not per job: a Python process of 80 MiB and one to two seconds each is a node's price, not a job's.

At most once: the name is unique in the cluster; and on the node's disk each job has a folder, made before Ray is asked
for anything, with ``begun`` before any command runs and ``ended.json`` at the end. They survive Ray as a whole: the
next supervisor of the node reports a job that had begun as lost. The tasks are never repeated (max_retries=0). They
meet at a barrier: no command runs before every place has its GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import pwd
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

logger = logging.getLogger(__name__)  # Ray's log of the actor
_LOCK_S = 20.0
"""A supervisor that dies with its cluster may have the folder for so long."""
_LISTEN_S = 0.2
"""How often a place looks whether it is to end."""
_LOOK_S = 2.0
"""How often a job that waits looks whether Ray can ever give it its GPUs."""
_INFEASIBLE_LOOKS = 3
"""So often in a row Ray says that it cannot; then the job is lost."""
_FINAL = ("succeeded", "failed", "cancelled", "lost")


def run_place(supervisor: Any, source: str, identity: str, index: int, order: dict[str, Any]) -> tuple[int, str] | None:
    """The task of one place: its exit code and why it did not start, or None: the command was not run."""
    gpus = [str(each) for each in ray.get_runtime_context().get_accelerator_ids().get("GPU", [])]
    if not order["gpu_count"]:
        gpus = []
    if not ray.get(supervisor.arrive.remote(identity, index, gpus)):
        return None
    stop = supervisor.order.remote(identity)
    order["environment"]["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    command = [sys.executable, "-I", "-S", "-c", source]
    said, is_stopped = b"", False
    with subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as runner:
        assert runner.stdin is not None
        assert runner.stdout is not None
        runner.stdin.write(json.dumps(order).encode() + b"\n")
        while True:
            if select.select([runner.stdout], [], [], _LISTEN_S)[0]:
                piece = runner.stdout.read(4096)
                if not piece:
                    break
                said += piece
            if not is_stopped and ray.wait([stop], timeout=0)[0]:
                ray.get(stop)  # raises when the supervisor has died: the pipe closes, and the command is killed
                is_stopped = True
                with contextlib.suppress(BrokenPipeError):
                    runner.stdin.write(b"T")
    pid, _, end = said.partition(b"\n")
    if not end:  # the runner was killed
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.killpg(int(pid), signal.SIGKILL)
        return -signal.SIGKILL, ""
    code, _, why = end.partition(b"\n")
    return int(code), why.decode("utf-8", "replace").strip()


class Job:
    """One job of a supervisor."""

    def __init__(self, spec: dict[str, Any], folder: Path) -> None:
        self.spec, self.folder = spec, folder
        self.gpus: dict[int, list[str]] = {}
        self.arrived, self.stopped = asyncio.Event(), asyncio.Event()
        self.state, self.reason, self.code = "pending", "", 0
        self.has_begun = self.is_cancelled = False
        self.lost = self.warning = self.fault = ""

    def report(self) -> dict[str, Any]:
        """What the driver learns."""
        places = []
        for index, (node, count, _, model) in enumerate(self.spec["places"]):
            given = self.gpus.get(index, [])
            gpus = [int(each) for each in given] if all(each.isdigit() for each in given) else []
            places.append([node, count, gpus, model])
        code = self.code if self.state in ("succeeded", "failed") else None
        return {
            "identity": self.spec["identity"], "state": self.state, "reason": self.reason, "code": code,
            "has_begun": self.has_begun, "places": places,
        }  # fmt: skip

    def end(self) -> None:
        """Decide the final state, and write it. ``warning`` is reported with it."""
        if self.lost:
            self.state, self.reason = "lost", self.lost
        elif self.is_cancelled:
            self.state, self.reason = "cancelled", ""
        else:
            self.state, self.reason = ("failed" if self.code else "succeeded"), self.fault
        self.reason = "; ".join(filter(None, (self.reason, self.warning)))
        write(self.folder, "ended.json", json.dumps(self.report()))


def own(base: Path) -> Path:
    """The user's folder of this name, made if need be; or, where another user has one of that name, with letters behind
    it, the first of them."""
    base.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        base.mkdir(mode=0o700)
    if not (found := _owned(base)):
        tempfile.mkdtemp(prefix=f"{base.name}.", dir=base.parent)
        found = _owned(base)
    return found[0]


def _owned(base: Path) -> list[Path]:
    """Not links: they could lead anywhere."""
    some = [base, *sorted(base.parent.glob(f"{base.name}.*"))]
    return [
        each
        for each in some
        if os.path.lexists(each) and (is_at := each.lstat()).st_uid == os.geteuid() and stat.S_ISDIR(is_at.st_mode)
    ]


def write(folder: Path, name: str, text: str) -> None:
    """All or nothing, and on the disk when this returns."""
    with (folder / f"{name}.new").open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    (folder / f"{name}.new").rename(folder / name)
    sync(folder)


def sync(folder: Path) -> None:
    """The folder's entries are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Supervisor:
    """The actor. Its methods run in one event loop."""

    def __init__(self, folder: str, node: str, source: str) -> None:
        """``folder``: on the node's disk; ``source``: of `ray_process`."""
        self._source = source
        self._folder = own(Path(f"{folder}-{os.geteuid()}")) / node
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._lock = self._taken()
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        for each in sorted(self._folder.iterdir()):
            if each.is_dir():
                self._remember(each)

    def _taken(self) -> int:
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        ends = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > ends:
                    raise
                time.sleep(0.1)
            else:
                return descriptor

    def _remember(self, folder: Path) -> None:
        """A job of an earlier supervisor of this node: ended, or lost with it."""
        ended, has_begun = folder / "ended.json", (folder / "begun").exists()
        if not (has_begun or ended.exists()):  # it never ran, and may be started
            shutil.rmtree(folder, ignore_errors=True)
            return
        job = Job(json.loads((folder / "start.json").read_text()), folder)
        job.has_begun = has_begun
        if ended.exists():
            report = json.loads(ended.read_text())
            job.state, job.reason, job.code = report["state"], report["reason"], report["code"] or 0
            for index, place in enumerate(report["places"]):
                job.gpus[index] = [str(each) for each in place[2]]
        else:
            job.lost = "the job's supervisor or its node was killed"
            job.end()
        self._jobs[job.spec["identity"]] = job

    # -- the driver -----------------------------------------------------------------------------------------------
    async def report(self) -> list[dict[str, Any]]:
        """All jobs that are not forgotten."""
        return [job.report() for job in self._jobs.values()]

    async def start(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Start a job, or find it. ``{"refused": reason}``: nothing of it is left."""
        identity = spec["identity"]
        job = self._jobs.get(identity)
        if job is not None and (job.has_begun or job.state != "lost"):
            return job.report()
        if reason := refusal(spec["user"]):
            return {"refused": reason}
        folder = self._folder / identity
        shutil.rmtree(folder, ignore_errors=True)  # of a start that was lost before the command began
        folder.mkdir(mode=0o700)
        write(folder, "start.json", json.dumps({**spec, "environment": {}, "argv": []}))
        sync(self._folder)
        job = self._jobs[identity] = Job(spec, folder)
        self._tasks[identity] = asyncio.ensure_future(self._run(job))
        return job.report()

    async def cancel(self, identity: str) -> bool:
        """False: unknown. The end is reported later."""
        job = self._jobs.get(identity)
        if job is not None and job.state not in _FINAL:
            job.is_cancelled = True
            job.stopped.set()
            job.arrived.set()
        return job is not None

    async def forget(self, identity: str) -> bool:
        """False: it has not ended."""
        job = self._jobs.get(identity)
        if job is not None:
            if job.state not in _FINAL:
                return False
            del self._jobs[identity]
            shutil.rmtree(job.folder, ignore_errors=True)
        return True

    # -- the places -----------------------------------------------------------------------------------------------
    async def arrive(self, identity: str, index: int, gpus: list[str]) -> bool:
        """The barrier: True when every place has its GPUs and ``begun`` is on the disk; False: do not run."""
        job = self._jobs[identity]
        job.gpus[index] = gpus
        if len(job.gpus) == len(job.spec["places"]) and not job.stopped.is_set() and not job.has_begun:
            write(job.folder, "begun", "")
            job.has_begun, job.state, job.reason = True, "running", ""
            job.arrived.set()
        await job.arrived.wait()
        return job.has_begun

    async def order(self, identity: str) -> None:
        """Returns when the job is to end."""
        await self._jobs[identity].stopped.wait()

    # -- a job ----------------------------------------------------------------------------------------------------
    async def _run(self, job: Job) -> None:
        group = None
        try:
            group = await asyncio.to_thread(self._group, job)
            await self._wait(job, group)
        except Exception as fault:  # whatever failed, Ray or this module: the job must end, and its reason says of what
            logger.exception("job %s: supervision failed", job.spec["identity"])
            job.lost = job.lost or f"{type(fault).__name__}: {fault}"[:300]
        finally:
            job.stopped.set()
            job.arrived.set()
            if group is not None:
                await self._give_back(job, group)
        job.end()
        del self._tasks[job.spec["identity"]]

    async def _give_back(self, job: Job, group: Any) -> None:
        """If it fails, Ray holds the GPUs until this process ends."""
        try:
            await asyncio.to_thread(remove_placement_group, group)
        except Exception as fault:  # whatever Ray raises: the job must end, and its report says this
            logger.exception("job %s: placement group not removed", job.spec["identity"])
            job.warning = f"Ray did not free its GPUs: {type(fault).__name__}: {fault}"[:300]

    def _group(self, job: Job) -> Any:
        """The GPUs of all places, all or none; None: no place has one."""
        placed = zip(job.spec["node_ids"], job.spec["places"], strict=True)
        with_gpus = [(node_id, place[1]) for node_id, place in placed if place[1]]
        if not with_gpus:
            return None
        return placement_group(
            [{"GPU": count} for _, count in with_gpus],
            bundle_label_selector=[{"ray.io/node-id": node_id} for node_id, _ in with_gpus],
        )

    def _places(self, job: Job, group: Any) -> list[Any]:
        spec, here = job.spec, ray.get_runtime_context().current_actor
        task = ray.remote(num_cpus=0, max_retries=0, max_calls=0)(run_place)
        refs: list[Any] = []
        bundle = 0
        for index, (node_id, place) in enumerate(zip(spec["node_ids"], spec["places"], strict=True)):
            where: Any = NodeAffinitySchedulingStrategy(node_id, soft=False)
            if place[1]:
                where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
                bundle += 1
            refs.append(
                task.options(num_gpus=place[1], scheduling_strategy=where, name=f"offpath:{spec['identity']}").remote(
                    here, self._source, spec["identity"], index, order_of(spec, index)
                )
            )
        return refs

    async def _wait(self, job: Job, group: Any) -> None:
        refs = await asyncio.to_thread(self._places, job, group)
        waiting: set[asyncio.Future[Any]] = {asyncio.wrap_future(ref.future()) for ref in refs}
        stopping = asyncio.ensure_future(job.stopped.wait())
        infeasible, is_cut = 0, False
        while waiting:
            watched = {*waiting, stopping} if not stopping.done() else waiting
            done, _ = await asyncio.wait(watched, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            for each in done & waiting:
                self._ended(job, each)
            waiting -= done
            if job.stopped.is_set():
                if not job.has_begun and not is_cut:
                    is_cut = True
                    await asyncio.to_thread(_cut, refs)
            elif not job.has_begun and group is not None and not done:
                table = await asyncio.to_thread(placement_group_table, group)
                scheduling = table.get("stats", {}).get("scheduling_state", "")
                job.reason = f"waits for GPUs: placement group {table.get('state')} {scheduling}".strip()
                infeasible = infeasible + 1 if scheduling == "INFEASIBLE" else 0
                if infeasible == _INFEASIBLE_LOOKS:
                    job.lost = job.reason
                    job.stopped.set()
                    job.arrived.set()
        stopping.cancel()

    def _ended(self, job: Job, place: asyncio.Future[Any]) -> None:
        code, fault_of_start = None, ""
        try:
            if (end := place.result()) is not None:
                code, fault_of_start = end
        except ray.exceptions.RayError as fault:  # the place's node or worker died, or it was never scheduled
            if not (job.is_cancelled and not job.has_begun):
                job.lost = job.lost or f"{type(fault).__name__}: {fault}"[:300]
        if code:
            job.code, job.fault = job.code or code, job.fault or fault_of_start[:300]
        if code is None or code:
            job.stopped.set()
            job.arrived.set()


def _cut(refs: list[Any]) -> None:
    """End tasks that wait for GPUs, or at the barrier."""
    for ref in refs:
        ray.cancel(ref)


def order_of(spec: dict[str, Any], index: int) -> dict[str, Any]:
    """What `ray_process` runs at a place."""
    node, count, _, _ = spec["places"][index]
    environment = {
        "PATH": spec["path"], **spec["environment"], "OFFPATH_JOB": spec["identity"], "OFFPATH_NODE": node,
        "OFFPATH_PLACE": str(index), "OFFPATH_PLACES": str(len(spec["places"])),
    }  # fmt: skip
    return {
        "argv": spec["argv"], "environment": environment, "working_directory": spec["working_directory"],
        "output": f"{spec['output']}.{index}" if spec["output"] else "", "user": spec["user"], "gpu_count": count,
    }  # fmt: skip


def refusal(user: str) -> str:
    """Why Ray's nodes do not run jobs of this user; empty: they do."""
    if not user:
        return ""
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        return f"unknown user {user} on the job's first node"
    return "" if os.geteuid() in (0, uid) else f"Ray does not run as root and starts no jobs of another user: {user}"
