"""One schedule from its seed to its verdict."""

from __future__ import annotations

import gc
import os
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from .promises import Violation
from .setup import TENANTS
from .world import World


class TokenFiles:
    """The tenants' token files, in a folder of the caller's."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.tokens = {}
        for name in TENANTS:
            self.tokens[name] = f"token-of-{name}-0123456789"
            with open(os.open(self.path(name), os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
                file.write(self.tokens[name])

    def path(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}.token")


@dataclass(slots=True)
class Outcome:
    """What one schedule came to. ``fault`` is the first line of what was broken."""

    seed: int
    fault: str | None
    steps: int
    virtual_ns: int
    counts: Counter[str]
    lines: list[str]


def live(seed: int, tokens: TokenFiles, *, trace: bool = False) -> Outcome:
    """One schedule from its seed; never raises for what it finds."""
    world: World | None = None
    fault: str | None = None
    lines: list[str] | None = [] if trace else None
    try:
        world = World(seed, tokens)
        world.lines = lines
        world.log("%s", world.setup)
        if trace:
            world.loop.trace = world.log
        world.run()
    except Violation as broken:
        fault = str(broken)
    except Exception as raised:
        fault = f"{type(raised).__name__}: {raised}"
        if lines is not None:
            lines += traceback.format_exc().splitlines()
    if world is None:
        return Outcome(seed, fault, 0, 0, Counter(), lines or [])
    counts = Counter(world.counts)
    judge = world.judge
    counts.update(
        {"requests": judge.accepted, "kernels": judge.kernels_started, "tenant_changes": judge.tenant_changes}
    )
    counts.update({f"answer_{name}": count for name, count in judge.answers.items()})
    return Outcome(seed, fault, world.loop.steps, world.loop.now_ns, counts, lines or [])


def quiet_collector() -> None:
    """Schedules make cycles, and die young: collecting by hand, seldom, is a third of the time."""
    gc.collect()
    gc.freeze()
    gc.disable()


def total(outcomes: Iterable[Outcome]) -> Counter[str]:
    """What happened in all of them."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(outcome.counts)
    return counts
