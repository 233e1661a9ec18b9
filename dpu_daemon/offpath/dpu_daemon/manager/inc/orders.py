"""The orders by which a switch or the engine starts a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from offpath.bindings.engines.port import Place, Start
from offpath.dpu_daemon.manager.inc.links import token_of
from offpath.dpu_daemon.switch.inc import messages
from offpath.sched.inc.live.records import Program, Request, Service, Task
from offpath.sched.inc.poly import TaskGroup

_DATA_PLANES: Final = {"netcache": Service.CACHE, "incbricks": Service.CACHE, "netchain": Service.CHAIN}
"""Services of which the emulated switches run a data plane, too; others are admitted, and run nothing."""


def switch_order(request: Request, task: Task, group: TaskGroup, secret: bytes) -> messages.StartTask:
    """For a switch. Its data plane is that of the composite's service."""
    program = request.spec.programs.get(task.composite, Program())
    plane = _DATA_PLANES.get(group.service, Service.NONE)
    return messages.StartTask(
        identity=task.identity, service=group.service, demand=list(group.demand), shared=list(group.shared),
        features=sorted(group.features), token=token_of(secret, task.identity).hex(),
        data_plane="cache" if plane is program.service is Service.CACHE
        else "chain" if plane is program.service is Service.CHAIN else "",
    )  # fmt: skip


def process_order(request: Request, task: Task, python: str, secret: bytes, more: Mapping[str, str]) -> Start:
    """For the engine: the composite's command, or the built-in program of its service. ``more``: variables of its
    environment."""
    program = request.spec.programs.get(task.composite, Program())
    built_in = (python, "-P", "-m", "offpath.cli.main", "inc", "serve", str(program.service))
    environment = dict(program.environment) | {
        "OFFPATH_INC_REQUEST": request.spec.name, "OFFPATH_INC_COMPOSITE": task.composite,
        "OFFPATH_INC_SLOT": str(task.slot), "OFFPATH_INC_ADDRESS": task.address,
        "OFFPATH_INC_TOKEN": token_of(secret, task.identity).hex(), **more,
    }  # fmt: skip
    return Start(
        identity=task.identity, places=(Place(task.node),), argv=program.argv or built_in, environment=environment,
        working_directory=program.directory, user=request.spec.user,
        output=f"{program.output}.{task.slot}" if program.output else "",
    )  # fmt: skip
