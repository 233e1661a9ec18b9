"""`offpath demo hire`: once as a whole, and what its report takes for a failure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from offpath.bindings.errors import PeerGone
from offpath.bindings.wire.inc_admin import RequestLine, Shown, TaskLine
from offpath.cli.demo.hire import clients, cluster, command, report
from offpath.cli.demo.hire.clients import Client
from offpath.cli.demo.hire.story import SERVED, VICTIM, Told, requests
from offpath.cli.local import engines

from ..support.command import offpath

LIMIT_S = 300.0


def test_a_switch_dies_and_its_tasks_fall_back_while_the_service_goes_on() -> None:
    done = offpath("demo", "hire", "--quick", "--json", timeout=LIMIT_S)
    assert done.code == 0, done.err
    made: dict[str, Any] = done.document
    assert made["faults"] == []
    assert len({task["tenant"] for task in made["tasks"]}) == 3
    assert len({(task["request"], task["composite"]) for task in made["tasks"]}) == 5
    assert all(task["reason"] and task["flavor"] for task in made["tasks"])
    before = {task["where"] for task in made["tasks_before"] if task["composite"] == "cache"}
    assert VICTIM in before
    cache = [task for task in made["tasks"] if task["composite"] == "cache"]
    assert {(task["flavor"], task["on"]) for task in cache} == {("server", "server")}
    assert any("lack sram_kib" in why for why in made["scarce"])
    for service in made["service"]:
        assert service["wrong"] == 0
        assert all(phase["reads"] and phase["writes"] for phase in service["phases"])
    on_switches = made["service"][0]["phases"][1]
    assert on_switches["hits"] > on_switches["due"] / 2


def test_the_demo_offers_every_engine_that_can_be_started_here() -> None:
    assert sorted(command.ENGINES) == sorted(engines.ENGINES)
    with engines.started("local", "/none", cluster.SERVERS) as engine:
        found = cluster.tables("/none", 20_000, engine)
    below = {name for switch in found["inc"]["switch"] for name in switch["hosts"]}
    assert below == {server["name"] for server in found["inc"]["server"]} == set(engine.nodes)
    assert len(below) == 8


def test_the_demo_has_five_composites_of_three_tenants() -> None:
    wanted = requests()
    assert sum(len(each.composite) for each in wanted) == 5
    assert len({each.tenant for each in wanted}) == 3
    assert [each.name for each in wanted[: len(SERVED)]] == list(SERVED)


def shown(where: str) -> Shown:
    line = RequestLine(
        name="shop", tenant="web", state="running", age_s=1.0, tasks=1, running=1, chosen={}, is_gang=False
    )
    task = TaskLine(
        identity="a", composite="cache", group="cache.netcache", flavor="netcache", where=where, is_inc=True, slot=0,
        of=1, service="cache", state="running", address="", reason="only",
    )  # fmt: skip
    return Shown(request=line, where="", tasks=[task], reasons={}, waits={}, stores={}, history=[], next=0)


@pytest.mark.parametrize(
    ("composite", "reads", "writes", "hits", "fault", "expected"),
    [
        ("cache", 8, 3, 0, "", False),  # the leases ended before the reads
        ("cache", 8, 3, 1, "", True),
        ("locks", 8, 3, 0, "", True),
        ("locks", 0, 3, 0, "", False),
        ("locks", 8, 0, 0, "", False),
        ("cache", 0, 0, 0, "no answer", True),
    ],
)
def test_a_phase_lasts_until_a_client_is_served(
    composite: str, reads: int, writes: int, hits: int, fault: str, expected: bool
) -> None:
    client = Client("shop", composite, "/none")
    client.fault = fault
    client.phases[-1].reads, client.phases[-1].writes, client.phases[-1].hits = reads, writes, hits
    assert client.is_served is expected
    client.mark("next")
    assert client.is_served is bool(fault)
    client.close()


class Answers:
    """Of a cache: each takes ``took_s`` of ``clock``; a read is a hit if ``is_hit``. After so many it ends."""

    flavor = "server"

    def __init__(self, took_s: float, *, is_hit: bool) -> None:
        self.counts, self.now_s, self.left = SimpleNamespace(hits=0), 0.0, 20
        self._took_s, self._is_hit, self._value = took_s, is_hit, b""

    def put(self, key: str, value: bytes) -> None:
        self._answer()
        self._value = value

    def get(self, key: str) -> tuple[bytes]:
        self._answer()
        self.counts.hits += self._is_hit
        return (self._value,)

    def _answer(self) -> None:
        if not self.left:
            raise PeerGone("over")
        self.left, self.now_s = self.left - 1, self.now_s + self._took_s


@pytest.mark.parametrize(
    ("composite", "took_s", "is_hit", "due"),
    [
        ("cache", 0.01, True, 16),
        ("cache", 0.01, False, 16),  # a cache that never hits is not excused
        ("cache", 0.2, True, 4),  # after a write at 0, reads are answered at 0.4, 0.6 …
        ("cache", 0.6, False, 0),
        ("locks", 0.01, True, 0),
    ],
)
def test_reads_are_due_from_a_cache_while_the_lease_of_their_key_lasts(
    monkeypatch: pytest.MonkeyPatch, composite: str, took_s: float, is_hit: bool, due: int
) -> None:
    client, answers = Client("shop", composite, "/none"), Answers(took_s, is_hit=is_hit)
    with monkeypatch.context() as patched:
        patched.setattr(client, "_values", answers)
        patched.setattr(clients.time, "monotonic", lambda: answers.now_s)
        patched.setattr(clients.time, "sleep", lambda _: None)
        client.run()
    client.close()
    assert (client.fault, client.wrong) == ("over", [])
    phase = client.phases[-1]
    assert (phase.writes, phase.reads, phase.hits, phase.due) == (4, 16, 16 * is_hit, due)


def test_the_report_names_what_did_not_happen() -> None:
    client = Client("config", "locks", "/none")
    client.mark("switch is lost")
    client.wrong.append("locks key 1: read 3, written were 5…")
    client.close()
    told = Told(before={"shop": shown("leaf0")}, after={"shop": shown(VICTIM)}, scarce=["3 wait"], clients=[client])
    faults = report.build(told)["faults"]
    for part in ("read 3", "no answers", "no task ran on", "which is dead", "SRAM"):
        assert any(part in fault for fault in faults), part
    assert "FAILED" not in report.render({**report.build(told), "engine": "local", "seconds": 1.0})
