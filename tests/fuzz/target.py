"""A parser under test, and the modules that targets call: a planted bug is a module with one line changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from offpath.bindings import tickets
from offpath.bindings.channel import session as sessions
from offpath.bindings.doca import pieces
from offpath.bindings.ina import frames as ina
from offpath.bindings.ina import packets
from offpath.bindings.loopback import fabric
from offpath.bindings.wire import (
    cluster,
    control,
    frames,
    header,
    host,
    ina_admin,
    inc_admin,
    negotiating,
    regions,
    work_admin,
)
from offpath.dpu_daemon import config
from offpath.dpu_daemon.switch.inc import messages
from offpath.dpu_daemon.switch.inc import packets as key_value
from offpath.host_helper.gateway import bodies, chunks, grpc_calls, grpc_requests, heads, inference
from offpath.host_helper.ina import rank_file

from .mutate import Mutation, Numbers


@dataclass(frozen=True)
class Modules:
    """What is under test."""

    header: ModuleType = header
    host: ModuleType = host
    regions: ModuleType = regions
    frames: ModuleType = frames
    tickets: ModuleType = tickets
    control: ModuleType = control
    negotiating: ModuleType = negotiating
    cluster: ModuleType = cluster
    ina_admin: ModuleType = ina_admin
    work_admin: ModuleType = work_admin
    inc_admin: ModuleType = inc_admin
    fabric: ModuleType = fabric
    sessions: ModuleType = sessions
    pieces: ModuleType = pieces
    ina: ModuleType = ina
    packets: ModuleType = packets
    key_value: ModuleType = key_value
    inc_messages: ModuleType = messages
    rank_file: ModuleType = rank_file
    config: ModuleType = config
    heads: ModuleType = heads
    bodies: ModuleType = bodies
    chunks: ModuleType = chunks
    inference: ModuleType = inference
    grpc_calls: ModuleType = grpc_calls
    grpc_requests: ModuleType = grpc_requests

    def planted(self, **modules: ModuleType) -> Modules:
        return replace(self, **modules)


SLOWNESS = int(os.environ.get("OFFPATH_TEST_SLOWNESS", "1"))
"""How many times slower than a real processor this one is: tests/node/quick runs on an emulated one."""


@dataclass(frozen=True)
class Target:
    """One parser. ``run`` is what is timed; ``check`` gets what it returned and raises AssertionError; ``shape`` says
    in a word what an accepted input was like, which guides the search."""

    name: str
    run: Callable[[bytes, Numbers], Any]
    refuses: tuple[type[Exception], ...]
    check: Callable[[bytes, Numbers, Any], None]
    mutate: Mutation
    codes: frozenset[str]
    shape: Callable[[Any], str] = field(default=lambda got: "")
    slow_ns: int = 10_000_000 * SLOWNESS
    """No input may hold the parser up for longer."""
