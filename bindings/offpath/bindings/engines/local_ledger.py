"""The ledger of the engine `local`: a folder per job (see `local_runner`). Blocking calls; one object at a time uses
it.

A runner that is dead without a record of its end was killed. What is left of its job is killed too: processes of the
commands' groups, those that have the job's ``OFFPATH_JOB`` in their environment, and their descendants. When none is
there any more, the job is lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any, Final

from offpath.bindings.engines import local_runner
from offpath.bindings.engines.plain import places_of, start_document
from offpath.bindings.engines.port import EngineJob, JobState, Place, Start, bounded
from offpath.bindings.errors import EngineAnswerInvalid, EngineUnavailable

_START_S: Final = 30.0
"""Limit for a runner's first line."""
_END_S: Final = 1.0
"""So long one look waits for processes that were killed."""


class Ledger:
    """The jobs below ``folder``, which must be on a local disk. Raises: EngineUnavailable: another controller uses
    it."""

    def __init__(self, folder: Path) -> None:
        self._jobs = folder / "jobs"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._jobs.mkdir(mode=0o700, exist_ok=True)
        self._jobs.chmod(0o700)  # arguments and environments of jobs are secret; earlier releases made it readable
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise EngineUnavailable(f"{folder}: another controller uses this state folder") from None
        self._final: dict[str, EngineJob] = {}
        for left in self._jobs.glob(".new-*"):
            shutil.rmtree(left, ignore_errors=True)

    def close(self) -> None:
        """Give the folder to another controller. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def identities(self) -> list[str]:
        """All jobs that are not forgotten, sorted."""
        return sorted(name for name in os.listdir(self._jobs) if not name.startswith("."))

    def job(self, identity: str) -> EngineJob | None:
        """The job's state now; None: unknown."""
        if identity in self._final:
            return self._final[identity]
        folder = self._jobs / identity
        start = _read(folder / "start.json")
        if start is None:
            return None
        started, ended = _read(folder / "started.json"), _read(folder / "ended.json")
        if started is not None and ended is None and not _lives(started):
            ended = _read(folder / "ended.json") or self._lose(folder, started)
        with _as_known(folder):
            job = _job(start, started, ended, _read(folder / "left.json"))
        if job.state.is_final:
            self._final[identity] = job
        return job

    def runner(self, identity: str) -> int | None:
        """The pid of the job's runner, if it has one that lives."""
        started = _read(self._jobs / identity / "started.json")
        return int(started["pid"]) if started is not None and _lives(started) else None

    def record(self, start: Start, places: tuple[Place, ...]) -> None:
        """The intent, on the disk before any process is started."""
        folder = Path(tempfile.mkdtemp(prefix=".new-", dir=self._jobs))
        local_runner.write(str(folder), "start.json", start_document(start, places))
        folder.rename(self._jobs / start.identity)
        local_runner.sync(str(self._jobs))

    def run(self, identity: str) -> None:
        """Start a runner, and wait until the processes run, or until it ended because another runner has the job.
        Raises: EngineUnavailable: no process can be made."""
        command = [sys.executable, "-I", "-S", local_runner.__file__, str(self._jobs / identity)]
        try:
            with Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, cwd="/") as runner:
                assert runner.stdout is not None
                runner.stdout.readline()
        except OSError as fault:
            raise EngineUnavailable(f"no process for job {identity}: {fault}") from fault

    def cancel(self, identity: str) -> None:
        """SIGTERM to the runner; a job that no runner ever began ends here."""
        folder = self._jobs / identity
        held = local_runner.lock(str(folder))
        if held is not None:
            try:
                if not (folder / "started.json").exists():
                    local_runner.write(str(folder), "ended.json", {"state": "cancelled", "code": None, "reason": ""})
            finally:
                os.close(held)
            return
        ends = time.monotonic() + _START_S
        while (pid := self.runner(identity)) is None and not (folder / "ended.json").exists():
            if time.monotonic() > ends:
                raise EngineUnavailable(f"the process of job {identity} does not begin")
            time.sleep(0.01)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def forget(self, identity: str) -> None:
        """Remove the job's folder."""
        self._final.pop(identity, None)
        gone = Path(tempfile.mkdtemp(prefix=".new-", dir=self._jobs))
        with contextlib.suppress(FileNotFoundError):
            (self._jobs / identity).rename(gone / "job")
        shutil.rmtree(gone, ignore_errors=True)

    def _lose(self, folder: Path, started: Mapping[str, Any]) -> dict[str, Any] | None:
        """Record the loss, when no process of the job is left; None: some do not end."""
        ended = {"state": "lost", "code": None, "reason": "the job's supervising process was killed"}
        if started["boot"] != local_runner.boot():
            ended["reason"] = "the machine was started again"
        elif left := _killed(folder.name, int(started["start"]), _read(folder / "children.json") or {}):
            local_runner.write(str(folder), "left.json", {"pids": sorted(left)[:8]})
            return None
        local_runner.write(str(folder), "ended.json", ended)
        return ended


def _killed(identity: str, since: int, children: Mapping[str, int]) -> set[int]:
    """What is left of a job without a runner gets SIGKILL, for at most `_END_S`. Returns what does not end."""
    ends = time.monotonic() + _END_S
    left: set[int] = set()
    while True:
        there = local_runner.processes()
        # The pid of a leader that ended is not reused while its group has a process.
        groups = {int(pid) for pid, start in children.items() if local_runner.start_time(int(pid)) in (None, start)}
        own = {
            pid
            for pid, fields in there.items()
            if int(fields[2]) in groups or (int(fields[19]) >= since and _is_of(pid, identity))
        }
        left = {pid for pid in left if pid in there} | own | local_runner.descendants([*own], there)
        if not left or time.monotonic() > ends:
            return left
        local_runner.send(left, signal.SIGKILL)
        time.sleep(0.01)


def _is_of(pid: int, identity: str) -> bool:
    """The process began its program with the variables of this job."""
    try:
        return f"OFFPATH_JOB={identity}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it ended, or belongs to a user whose processes this one may not read
        return False


def _lives(started: Mapping[str, Any]) -> bool:
    return bool(started["boot"] == local_runner.boot() and local_runner.start_time(started["pid"]) == started["start"])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            document = json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as fault:
        raise EngineAnswerInvalid(f"{path}: {fault}") from fault
    if not isinstance(document, dict):
        raise EngineAnswerInvalid(f"{path}: not an object")
    return document


@contextlib.contextmanager
def _as_known(folder: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError) as fault:
        raise EngineAnswerInvalid(f"{folder}: damaged record: {fault!r}"[:200]) from fault


def _job(
    start: Mapping[str, Any], started: object, ended: Mapping[str, Any] | None, left: Mapping[str, Any] | None
) -> EngineJob:
    places = places_of(start["places"])
    identity = str(start["identity"])
    if ended is not None:
        reason = bounded(str(ended["reason"]))
        return EngineJob(identity, identity, JobState(ended["state"]), places, ended["code"], reason)
    if started is None:
        reason = "recorded, not started: start it again"
        return EngineJob(identity, identity, JobState.PENDING, places, reason=reason)
    reason = f"processes {', '.join(map(str, left['pids']))} do not end, and keep its GPUs" if left is not None else ""
    return EngineJob(identity, identity, JobState.RUNNING, places, reason=bounded(reason))
