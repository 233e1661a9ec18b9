"""Assembles and runs a controller: sockets, plug-ins, signals, readiness notification."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from random import Random

import uvloop

from offpath.bindings.errors import OffpathError, PlaceUnusable
from offpath.bindings.runtime import CONTROLLER_SOCKET, make_runtime_directory
from offpath.bindings.wire import control, ina_admin
from offpath.bindings.zeromq.keys import read_allowed
from offpath.dpu_daemon.config import zmq_secret
from offpath.dpu_daemon.controller.agents import Agents
from offpath.dpu_daemon.controller.answers import Answers
from offpath.dpu_daemon.controller.config import Loaded
from offpath.dpu_daemon.controller.jobs import Jobs
from offpath.dpu_daemon.controller.modes import Modes, settings, sharing_slot
from offpath.dpu_daemon.controller.plugin_child import PLACEMENT, TREE_BUILDER
from offpath.dpu_daemon.controller.plugin_slots import Building, Placing, PluginSlot, SharingOut
from offpath.dpu_daemon.controller.seal import TermSeal
from offpath.dpu_daemon.controller.shell import ControllerShell
from offpath.dpu_daemon.controller.store import Store
from offpath.dpu_daemon.controller.switches import Switches
from offpath.dpu_daemon.controller.trust import Trust
from offpath.dpu_daemon.controller.tuning import Tuner
from offpath.dpu_daemon.durability.notify import Notifier
from offpath.dpu_daemon.listening.places import Places
from offpath.dpu_daemon.operation import logs
from offpath.dpu_daemon.operation.admin_socket import AdminHandlers, AdminSocket
from offpath.sched.gpu.plugin import PREFIX
from offpath.sched.ina.sharing.planner import Planner
from offpath.sched.ina.sharing.policies import Mina, Sharing, TreeBuilder
from offpath.sched.placement.fragments import Fragments
from offpath.sched.placement.port import Placement
from offpath.sched.placement.registry import make

logger = logging.getLogger(__name__)


class TakenOver(OffpathError):
    """Another controller has taken over, so this one exits."""


@contextlib.asynccontextmanager
async def running_controller(loaded: Loaded, directory: str) -> AsyncIterator[ControllerShell]:
    """A controller that is active for as long as the block runs.

    Raises: RegionError, PlaceUnusable: the directory or sockets cannot be created. PluginError: a plug-in does not
    start. HostChannelError: the keys or pyzmq cannot be used.
    """
    from offpath.bindings.zeromq.library import CLUSTER
    from offpath.bindings.zeromq.listener import ZmqListener

    config, topology = loaded.config, loaded.topology
    with contextlib.ExitStack() as held:
        try:
            make_runtime_directory(directory)
        except OSError as fault:
            raise PlaceUnusable(f"{directory}: {fault.strerror or fault}") from None
        policy = config.policy
        placing, building, sharing = await asyncio.to_thread(_slots, loaded)
        for slot in (placing, building, sharing):
            held.callback(slot.close)
        number_of = {name: number for number, name in enumerate(topology.names)}
        usable = frozenset(number_of[switch.name] for switch in config.switch)
        tuner = Tuner()
        held.callback(tuner.close)
        planner = Planner(
            topology, {switch.name: switch.address for switch in config.switch},
            Building(building, loaded.text, usable), SharingOut(sharing), settings(policy), tuner,
        )  # fmt: skip
        agents = config.agents
        secret, allowed = zmq_secret(agents.key_file), read_allowed(agents.allowed)
        seal = TermSeal(secret)
        store = Store(config.operation.state, seal.is_proven)
        store.open()
        held.callback(store.close)
        jobs = Jobs(topology, Placing(placing, loaded.text), store, config.ranks_per_host)
        trust = Trust(seal, store)
        trust.remember()
        shell = ControllerShell(planner, store, jobs, trust)
        jobs.remember(shell.now_ns())
        listener = ZmqListener(agents.bind, secret, allowed, agents.domain, CLUSTER)
        hosts = Agents(listener, topology.host_numbers.__contains__, shell.reported, shell.agent_came, shell.agent_left)
        switches = Switches(config.switch, shell.dispatch, shell.led_elsewhere, planner.settings.capacity)
        held.callback(shell.close)
        shell.start(hosts, switches)
        modes = Modes(shell, policy, SharingOut(sharing), placing, building)
        held.callback(modes.close)
        answers = Answers(shell, modes, config.ina_directory)

        async def answer(request: ina_admin.Request, uid: int) -> ina_admin.Reply:
            return answers.to(request)

        handlers = AdminHandlers(
            lambda body: control.decode(ina_admin.TO_CONTROLLER_ADMIN, body), answer,
            lambda: config.operation.admin_uids,
        )  # fmt: skip
        places = Places()
        operators = AdminSocket(handlers, os.path.join(directory, CONTROLLER_SOCKET), places=places)
        try:
            await operators.start()
            places.open()
        except OSError as fault:
            raise PlaceUnusable(f"{fault.filename or directory}: {fault.strerror or fault}") from None
        try:
            async with asyncio.TaskGroup() as tasks:
                switches.start(tasks)
                try:
                    yield shell
                finally:
                    switches.close()
        finally:
            places.close()
            await operators.close()


def _slots(loaded: Loaded) -> tuple[PluginSlot[Placement], PluginSlot[TreeBuilder], PluginSlot[Sharing]]:
    """Block until every plug-in is loaded. Raises: PluginError."""
    policy = loaded.config.policy
    deadline_s = policy.plugin_ms / 1e3
    with contextlib.ExitStack() as made:
        own: Placement = (
            Fragments() if policy.placement.startswith(PREFIX) else make(policy.placement, Random(0))
        )  # fmt: skip
        placing: PluginSlot[Placement] = PluginSlot.of(PLACEMENT, policy.placement, own, deadline_s)
        made.callback(placing.close)
        mina: TreeBuilder = Mina(policy.candidates, Random(0))
        building: PluginSlot[TreeBuilder] = PluginSlot.of(TREE_BUILDER, policy.tree_builder, mina, deadline_s)
        made.callback(building.close)
        sharing = sharing_slot(policy)
        made.pop_all()
    return placing, building, sharing


async def serve(loaded: Loaded, directory: str, ready: Callable[[ControllerShell], None]) -> None:
    """Run until SIGTERM, SIGINT, or until another controller takes over. Raises: TakenOver."""
    logs.set_up(loaded.config.operation.log)
    notifier = Notifier.from_environment()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    asyncio.get_running_loop().set_exception_handler(logs.loop_fault)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running_controller(loaded, directory) as shell:
        shell.on_deposed = stop.set
        notifier.ready(f"term {shell.machine.term}")
        ready(shell)
        await stop.wait()
        notifier.stopping()
    if shell.machine.is_deposed:
        raise TakenOver(f"a controller with a term above {shell.machine.term} is active")


def run(loaded: Loaded, directory: str, ready: Callable[[ControllerShell], None]) -> None:
    """`serve` on uvloop; blocks."""
    uvloop.run(serve(loaded, directory, ready))
