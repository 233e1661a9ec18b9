"""A short life of the node, struck once at each of its moments, by each blow: small enough to leave nothing out.

Three requests of two tenants on one GPU: a lease opens, two jobs run one after the other, the lane is
scrubbed, the instance goes to the other tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from offpath.bindings.wire import control

from .channels import HostEnd
from .judge import Request
from .requesters import MS, SimRequester
from .stage import QUIET, Stage
from .survivors import DaemonKilled
from .world import World

MOST = 400
SCENES: dict[str, dict[str, Any]] = {
    "one-lane": {"inline_copies": 1.0},
    "two-lanes-copies-fly": {"inline_copies": 0.0, "kernel_ns": 50 * MS, "leasing": {**QUIET.leasing, "lanes": 2}},
    "batch": {"inline_copies": 0.0, "kernel_ns": 5 * MS, "is_batching": True, "batch_waits": 1},
    "sequence": {"inline_copies": 0.0, "kernel_ns": 5 * MS, "is_sequential": True},
    "sequence-anew": {"inline_copies": 0.0, "kernel_ns": 5 * MS, "is_sequential": True},
    "stream": {"inline_copies": 0.0, "kernel_ns": 5 * MS, "is_streaming": True},
}
ENOUGH = 30_000


def kill_daemon(world: World) -> None:
    if world.channel is not None:
        world.kill_daemon()


def kill_worker(world: World) -> None:
    for worker in world.helper.workers()[:1]:
        worker.die()


def kill_helper(world: World) -> None:
    world._kill_helper()


def end_helper(world: World) -> None:
    world.helper.leave()


def lose_lane(world: World) -> None:
    """The connection, not the worker: it will try to come back."""
    if world.channel is not None:
        for worker in world.helper.workers():
            worker.is_liar = True  # as good a reason as any to hang up on it
        for link in list(world.daemon.host.lanes.links.values())[:1]:
            world.loop.running(world.daemon.host.lanes.worker_gone, link, "struck")


def drop_instances(world: World) -> None:
    """The daemon dies, and stays away for longer than the helper waits."""
    kill_daemon(world)
    world.helper._drop_all()


def drop_unasked(world: World) -> None:
    """The helper gives an instance up, scrubbed, as after a fork that failed; the daemon may be copying there."""
    for lease in list(world.helper.instances)[:1]:
        world.helper._drop(lease, scrub=True)


def lose_a_newcomer(world: World) -> None:
    """The daemon dies; before its helper is back another one says hello, and is gone before it has joined."""
    kill_daemon(world)
    world.helper.be_silent(True)

    def come() -> None:
        if world.channel is None:
            world.loop.after(MS, ("world", "newcomer"), come)
            return
        end = HostEnd(world, world.new_pid(), lambda: None)
        kernels = [control.KernelOffer(name="x", demand=14)]
        end.send(control.encode(control.HelperHello(name="new", pid=end.pid, kernels=kernels, gpu_count=1)))
        world.channel.connect(end)
        world.loop.after(MS, ("world", "newcomer"), lambda: leave(end))

    def leave(end: HostEnd) -> None:
        end.close(is_death=True)
        world.loop.after(MS, ("world", "newcomer"), lambda: world.helper.be_silent(False))

    come()


def kill_daemon_and_worker(world: World) -> None:
    kill_daemon(world)
    kill_worker(world)


def kill_daemon_and_helper(world: World) -> None:
    kill_helper(world)
    kill_daemon(world)


def kill_daemon_twice(world: World) -> None:
    kill_daemon(world)
    world.loop.after(MS, ("world", "again"), lambda: kill_daemon(world))


def kill_daemon_before_a_message(world: World) -> None:
    """The daemon dies as it is about to send the next message to a helper or worker, which is in the journal."""
    may_be_killed = world.may_be_killed

    def killed_there(where: str) -> None:
        if where == "before a message to the host":
            world.may_be_killed = may_be_killed  # type: ignore[method-assign]
            raise DaemonKilled

    world.may_be_killed = killed_there  # type: ignore[method-assign]


BLOWS: tuple[Callable[[World], None], ...] = (
    kill_daemon, kill_worker, kill_helper, end_helper, lose_lane, drop_instances, drop_unasked, lose_a_newcomer,
    kill_daemon_and_worker, kill_daemon_and_helper, kill_daemon_twice,
    kill_daemon_before_a_message,
)  # fmt: skip


def _first_two(world: World) -> tuple[tuple[str, str], dict[str, Any], dict[str, Any]]:
    """Kernels and options of the first tenant's requests."""
    if world.setup.is_batching:
        return ("rows", "rows"), {}, {}
    if world.setup.is_streaming:
        return ("tokens", "tokens"), {}, {}
    if world.setup.is_sequential:
        return ("steps", "steps"), {"sequence_id": 1, "sequence_start": True}, {"sequence_id": 1, "sequence_end": True}
    return ("small", "large"), {}, {}


def _begun_anew(stage: Stage, requester: SimRequester) -> list[Request]:
    """Behind a sequence: it starts anew with a request that expires during any restart, and goes on."""
    return [
        stage.submit(requester, "steps", sequence_id=1, sequence_start=True, budget_ms=30),
        stage.submit(requester, "steps", sequence_id=1),
        stage.submit(requester, "steps", sequence_id=1),
    ]


def lived(folder: Path, blow: Callable[[World], None], moment: int, scene: str) -> bool:
    """One life; False: it was over before the moment came."""
    stage = Stage(folder, is_durable=True, **SCENES[scene])
    try:
        world = stage.world
        requesters = [stage.requester("ada", 5), stage.requester("bob")]
        names, first, second = _first_two(world)
        requests = [
            stage.submit(requesters[0], names[0], **first),
            stage.submit(requesters[0], names[1], is_idempotent=True, **second),
            stage.submit(requesters[1], "whole"),
        ]
        if scene == "sequence-anew":
            requests += _begun_anew(stage, requesters[0])
        for requester in requesters:
            requester.left = 0
            requester.wake()
        for _ in range(moment):
            if all(request.is_taken for request in requests):
                return False
            world.step()
        blow(world)
        stage.until(lambda: all(requester.is_done for requester in requesters), ENOUGH)
        assert all(request.is_taken for request in requests)
        world.heal()
        world.rest()
    finally:
        stage.close()
    return True


def struck(folder: Path, blow: Callable[[World], None], scene: str) -> Iterator[int]:
    """The moments of a life, each after it was struck there and kept its promises. Raises: AssertionError."""
    for moment in range(MOST):
        if not lived(folder, blow, moment, scene):
            return
        yield moment
    raise AssertionError("the life does not end")


def first_broken(folder: Path, name: str = "any") -> str | None:
    """A blow, or any, at every moment: what broke first, or None."""
    for blow in (blow for blow in BLOWS if name in ("any", blow.__name__)):
        for scene in SCENES:
            survived = 0
            try:
                for _ in struck(folder, blow, scene):
                    survived += 1
            except Exception as fault:
                return f"{blow.__name__} at moment {survived}, {scene}: {fault}"
    return None
