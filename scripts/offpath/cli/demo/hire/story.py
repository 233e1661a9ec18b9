"""What happens in the demo: four requests of three tenants, then a leaf switch is killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from offpath.bindings.errors import PeerGone
from offpath.bindings.wire.inc_admin import CompositeBody, ConnectionBody, Shown, SubmitRequest
from offpath.cli.demo.hire.clients import Client
from offpath.cli.demo.hire.cluster import Cluster

_PLACED_S: Final = 60.0
_FALLBACK_S: Final = 45.0
VICTIM: Final = "leaf1"
MIB: Final = 1024


def requests() -> list[SubmitRequest]:
    """Five composites of three tenants, in the order of submission. The last one finds no SRAM: a cache needs three
    leaf switches with P4, and each of the three has given 12 of its 22 MiB to the first."""
    shop = SubmitRequest(
        name="shop", tenant="web", priority=10,
        composite=[
            CompositeBody(name="store", service="store", instances=1, cpu_milli=500, memory_mib=256),
            CompositeBody(name="cache", template="cache", instances=2, cpu_milli=500, memory_mib=256,
                          among=["netcache", "server"], demand={"netcache": {"sram_kib": 12 * MIB, "stages": 4}}),
        ],
        connection=[ConnectionBody(source="cache", target="store", bidirectional=True)],
    )  # fmt: skip
    config = SubmitRequest(
        name="config", tenant="ops", priority=10, gang=True, deadline_s=30.0,
        composite=[CompositeBody(name="locks", template="coordinator", instances=3, cpu_milli=500, memory_mib=256,
                                 demand={"netchain": {"sram_kib": 6 * MIB, "stages": 2}})],
    )  # fmt: skip
    train = SubmitRequest(
        name="train", tenant="ml",
        composite=[CompositeBody(name="sums", template="aggregate", instances=4, cpu_milli=500, memory_mib=256,
                                 among=["sharp", "server"], demand={"sharp": {"sram_kib": 2 * MIB}},
                                 argv=["sleep", "600"])],
    )  # fmt: skip
    features = SubmitRequest(
        name="features", tenant="ml",
        composite=[CompositeBody(name="lookup", template="cache", instances=4, cpu_milli=500, memory_mib=256,
                                 among=["netcache"], demand={"netcache": {"sram_kib": 12 * MIB, "stages": 2}})],
    )  # fmt: skip
    return [shop, config, train, features]


SERVED: Final = ("shop", "config", "train")


@dataclass(slots=True)
class Told:
    """What was seen. ``before``, ``after``: the requests, before and after the kill; ``scarce``: what `explain` said of
    the one that found no SRAM."""

    before: dict[str, Shown] = field(default_factory=dict)
    after: dict[str, Shown] = field(default_factory=dict)
    scarce: list[str] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    fallback_s: float = 0.0
    counters: dict[str, Any] = field(default_factory=dict)


def tell(cluster: Cluster, echo: Callable[[str], None], steady_s: float) -> Told:
    """Run it; no process of the requests is left afterwards. Raises: PeerGone: something did not happen in time."""
    wanted = requests()
    try:
        return _told(cluster, wanted, echo, steady_s)
    finally:
        cluster.end_tasks([each.name for each in wanted], _FALLBACK_S)


def _told(cluster: Cluster, wanted: list[SubmitRequest], echo: Callable[[str], None], steady_s: float) -> Told:
    told = Told()
    for request in wanted[: len(SERVED)]:
        cluster.submit(request)
    echo(f"{len(wanted)} requests of 3 tenants, {sum(len(each.composite) for each in wanted)} composites")
    _wait(lambda: all(_is_running(cluster.shown(name)) for name in SERVED), _PLACED_S, "the requests run")
    for request in wanted[len(SERVED) :]:
        cluster.submit(request)
    _wait(lambda: _lacks_sram(cluster.shown("features")), _PLACED_S, "a request finds no SRAM")
    told.scarce = sorted(cluster.shown("features").waits.values())
    told.before = {name: cluster.shown(name) for name in (*SERVED, "features")}
    told.clients = [Client("shop", "cache", cluster.runtime_dir), Client("config", "locks", cluster.runtime_dir)]
    for client in told.clients:
        client.start()
    try:
        _wait(lambda: all(each.phases[-1].reads > 20 for each in told.clients), _PLACED_S, "clients are answered")
        _phase(told, "on switches", steady_s)
        echo(f"kill switch {VICTIM}")
        for client in told.clients:
            client.mark("switch is lost")
        began = time.monotonic()
        cluster.kill_switch(VICTIM)
        _wait(lambda: _has_moved(cluster), _FALLBACK_S, f"the tasks of {VICTIM} run elsewhere")
        told.fallback_s = time.monotonic() - began
        echo(f"after {told.fallback_s:.1f} s all tasks run again")
        _wait(lambda: all(_is_answered(cluster, each) for each in told.clients), _FALLBACK_S, "clients use them")
        _wait(lambda: all(each.is_heard for each in told.clients), _FALLBACK_S, "clients are answered again")
        _phase(told, "after the fallback", steady_s)
    finally:
        for client in told.clients:
            client.close()
    told.after = {name: cluster.shown(name) for name in (*SERVED, "features")}
    return told


def _phase(told: Told, name: str, seconds: float) -> None:
    """At least so many seconds; longer where a busy machine has not served a client by then: a cache keeps a key for
    half a second only."""
    for client in told.clients:
        client.mark(name)
    time.sleep(seconds)
    _wait(lambda: all(each.is_served for each in told.clients), _FALLBACK_S, f"clients are served {name}")


def _is_running(shown: Shown) -> bool:
    return shown.request.state == "running" and all(task.state == "running" for task in shown.tasks)


def _lacks_sram(shown: Shown) -> bool:
    return any("lack sram_kib" in why for why in shown.waits.values())


def _has_moved(cluster: Cluster) -> bool:
    """Each request runs, and nothing but what waits for the dead switch's word is there."""
    for name in SERVED:
        shown = cluster.shown(name)
        here = [task for task in shown.tasks if task.state != "stopping"]
        is_elsewhere = all(task.where != VICTIM and task.state == "running" for task in here)
        if shown.request.state != "running" or not is_elsewhere:
            return False
    return cluster.shown("shop").request.chosen.get("cache") == "server"


def _is_answered(cluster: Cluster, client: Client) -> bool:
    """By the tasks that run now; or it has failed. Clients look for tasks from time to time."""
    return bool(client.fault) or cluster.shown(client.request).request.chosen.get(client.composite) == client.flavor


def _wait(claim: Callable[[], bool], within_s: float, what: str) -> None:
    until = time.monotonic() + within_s
    while not claim():
        if time.monotonic() > until:
            raise PeerGone(f"not within {within_s:g} s: {what}")
        time.sleep(0.1)
