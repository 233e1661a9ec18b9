"""Requests that several tests share."""

from __future__ import annotations

from typing import Any

from offpath.sched.inc.request import Composite, CompReq, Connection, Servers
from offpath.sched.inc.store import CompStore

STORE = CompStore()
SMALL = Servers(12, 4_000, 8_192)


def composite(name: str, template: str = "server", servers: Servers = SMALL, **more: Any) -> Composite:
    return Composite(name, template, servers, **more)


def web_application(job: str = "web", **more: Any) -> CompReq:
    """Figure 4b: five composites, three of them with a choice."""
    parts = (
        composite("c1"),
        composite("c2", "balance", Servers(40, 4_000, 8_192)),
        composite("c3", "cache", Servers(30, 2_000, 32_768)),
        composite("c4"),
        composite("c5", "coordinator", Servers(6, 16_000, 32_768), among=("netchain", "server"),
                  demand={"netchain": {"sram_kib": 6_144, "stages": 2, "recirculation": 0}}),
    )  # fmt: skip
    links = (Connection("c1", "c2"), Connection("c2", "c3"), Connection("c2", "c4"), Connection("c4", "c5", True))
    return CompReq(job, parts, links, **more)
