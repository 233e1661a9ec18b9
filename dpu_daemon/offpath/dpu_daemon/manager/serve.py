"""Assembles and runs a job manager: engine, file, socket, signals, readiness notification."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import uvloop

from offpath.bindings.engines.port import Engine
from offpath.bindings.errors import PlaceUnusable
from offpath.bindings.runtime import MANAGER_SOCKET, make_runtime_directory
from offpath.bindings.wire import control, inc_admin
from offpath.dpu_daemon.listening.places import Places
from offpath.dpu_daemon.manager.answers import Answers
from offpath.dpu_daemon.manager.config import EngineTable, ManagerConfig
from offpath.dpu_daemon.manager.plugin import placement
from offpath.dpu_daemon.manager.shell import ManagerShell
from offpath.dpu_daemon.manager.store import JobsFile
from offpath.dpu_daemon.manager.translation import expanded
from offpath.dpu_daemon.operation.admin_socket import AdminHandlers, AdminSocket
from offpath.dpu_daemon.operation.serving import prepare, until_signal

logger = logging.getLogger(__name__)


def engine_of(table: EngineTable) -> Engine:
    """The engine that the configuration names. Raises: EngineMissing: its programs or package are not installed."""
    if table.kind == "slurm":
        from offpath.bindings.engines.slurm import SlurmEngine
        from offpath.bindings.engines.slurm_script import Submission

        programs = f"{table.bin.rstrip('/')}/" if table.bin else ""
        options = (f"--partition={table.partition}",) if table.partition else ()
        submission = Submission(programs=programs, settle_s=table.settle_s, options=options)
        more = {"SLURM_CONF": table.conf} if table.conf else {}
        return SlurmEngine(expanded, submission, environment=more)
    if table.kind == "ray":
        from offpath.bindings.engines.ray_engine import FOLDER, RayEngine

        return RayEngine(
            table.address, python=table.python, token=table.token, folder=table.folder.rstrip("/") or FOLDER
        )
    from offpath.bindings.engines.local import LocalEngine

    return LocalEngine(Path(table.folder), [node.info() for node in table.node] or None)


@contextlib.asynccontextmanager
async def running_manager(config: ManagerConfig, directory: str) -> AsyncIterator[ManagerShell]:
    """A job manager that works for as long as the block runs.

    Raises: RegionError, PlaceUnusable: the directory, the socket or the jobs' file cannot be used. EngineMissing.
        PluginError: the policy is a plug-in that cannot be loaded.
    """
    try:
        make_runtime_directory(directory)
    except OSError as fault:
        raise PlaceUnusable(f"{directory}: {fault.strerror or fault}") from None
    engine = engine_of(config.engine)
    with placement(config.policy) as policy:
        async with _serving(ManagerShell(config, engine, policy, JobsFile(config.operation.state)), directory) as shell:
            yield shell


@contextlib.asynccontextmanager
async def _serving(shell: ManagerShell, directory: str) -> AsyncIterator[ManagerShell]:
    """Its socket is open while the block runs; then it is closed. Raises: PlaceUnusable."""
    answers = Answers(shell)
    handlers = AdminHandlers(
        lambda body: control.decode(inc_admin.TO_MANAGER, body), answers.to, lambda: shell.config.operation.uids
    )
    places = Places()
    users = AdminSocket(handlers, os.path.join(directory, MANAGER_SOCKET), places=places)
    try:
        try:
            await users.start()
            places.open()
        except OSError as fault:
            raise PlaceUnusable(f"{fault.filename or directory}: {fault.strerror or fault}") from None
        yield shell
    finally:
        places.close()
        await users.close()
        await shell.close()


async def serve(config: ManagerConfig, directory: str, ready: Callable[[ManagerShell], None]) -> None:
    """Run until SIGTERM or SIGINT; jobs continue. Raises: PlaceUnusable: the jobs' file cannot be written."""
    notifier = prepare(config.operation.log)
    async with running_manager(config, directory) as shell:
        await until_signal(shell.run(), notifier, f"engine {shell.engine.name}", partial(ready, shell))


def run(config: ManagerConfig, directory: str, ready: Callable[[ManagerShell], None]) -> None:
    """`serve` on uvloop; blocks."""
    uvloop.run(serve(config, directory, ready))
