"""docs/states.md: which states a job and a lease pass through, recorded from the job book at work.

The code has no table of transitions: each is an assignment in `sched.jobs`. So the book is driven through seeded random
worlds (`tests.sched.jobs.world`). Every assignment of a state is recorded with the event that the book handled, and
the page is written from that. Half of the worlds end with a restart that has lost the slots. To write the page:
``./scripts/states``.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final

from offpath.sched.jobs import events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.records import Job, Lease
from offpath.sched.jobs.states import FIRST_TERMINAL, JobState, LeaseState

from ..sched.jobs.world import World
from .sources import ROOT

PAGE: Final = ROOT / "docs" / "states.md"
SEEDS: Final = range(200)
SHOWN: Final = 3
"""An edge that more kinds of events can cause names none: mostly it is time that passed, or room that came free."""

Edge = tuple[Enum, Enum]
Recorded = dict[Edge, set[str]]


@contextmanager
def recording() -> Iterator[Recorded]:
    """Record each change of a job's or a lease's state, with the kinds of events that caused it."""
    found: Recorded = defaultdict(set)
    handled = ["its creation"]
    originals = {kind: kind.__dict__["state"] for kind in (Job, Lease)}
    handle = JobBook.handle

    def watched(slot: Any) -> property:
        def assign(owner: Any, state: Enum) -> None:
            try:
                before = slot.__get__(owner)
            except AttributeError:
                before = None
            if before is not None and before is not state:
                found[before, state].add(handled[-1])
            slot.__set__(owner, state)

        return property(slot.__get__, assign)

    def noted(book: JobBook, event: events.Event, now_ns: int) -> Any:
        handled.append(type(event).__name__)
        try:
            return handle(book, event, now_ns)
        finally:
            handled.pop()

    patched: dict[tuple[type, str], Any] = {(kind, "state"): watched(slot) for kind, slot in originals.items()}
    patched[JobBook, "handle"] = noted
    undo = [(owner, name, owner.__dict__[name]) for owner, name in patched]
    try:
        for (owner, name), value in patched.items():
            setattr(owner, name, value)
        yield found
    finally:
        for owner, name, value in undo:
            setattr(owner, name, value)


def lose_slots(world: World) -> None:
    """What recovery does where the memory of a session is another than what was accepted."""
    for job in sorted(world.book.ledger.jobs):
        world.book.handle(events.SlotLost(job), world.now_ns)


def observe() -> Recorded:
    """The transitions of all seeds."""
    with recording() as found:
        for seed in SEEDS:
            world = World(seed)
            if seed % 2:
                world.run()
                continue
            world.run_some(100 + seed)
            lose_slots(world)
    return dict(found)


def diagram(found: Recorded, kind: type[Enum], is_end: Callable[[Any], bool]) -> str:
    """A Mermaid state diagram of the states of one kind, in the order in which the code declares them."""
    order = {state: at for at, state in enumerate(kind)}
    first = next(iter(kind))
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first.name}"]
    for edge in sorted((edge for edge in found if isinstance(edge[0], kind)), key=lambda e: (order[e[0]], order[e[1]])):
        causes = sorted(found[edge])
        label = f": {', '.join(causes)}" if len(causes) <= SHOWN else ""
        lines.append(f"    {edge[0].name} --> {edge[1].name}{label}")
    lines += [f"    {state.name} --> [*]" for state in kind if is_end(state)]
    return "\n".join([*lines, "```"])


def page(found: Recorded) -> str:
    """docs/states.md."""
    return f"""# States

Written by `./scripts/states`; a test regenerates it. The code has no table of transitions, so this page shows those
that the job book made in {len(SEEDS)} seeded random worlds. A label names the events that the book was handling. A
transition without a label can come with more than {SHOWN} kinds of events: a deadline passed, or room came free.
Words: [glossary.md](glossary.md).

## Job

A job has one terminal state and keeps it. PLACED is not used: a copy starts with the placement. Only a restart can end
a job with RETRY_SAFE.

{diagram(found, JobState, lambda state: state >= FIRST_TERMINAL)}

## Lease

The slices of an instance are free when the lease is FREE. After the loss of a helper a lease is FREE at once; its
slices count as dirty, and the next instance there is scrubbed before its workers start.

{diagram(found, LeaseState, lambda state: state is LeaseState.FREE)}

## What has no diagram

- *Session.* It has no enumeration of states. A session is attached while a peer holds its doorbell, detached while it
  waits for the peer to resume, and closed at the end.
- *Batch.* Its members have the state of a job each. They are COPYING and LAUNCHED together, and end one by one.
  [batching.md](batching.md) describes what happens to a member that ends before the others.
- *Sequence.* It waits for a lane, has one, or is idle. [sequences.md](sequences.md) describes what ends it, and what
  becomes of its jobs.
- *Epoch.* A rank keeps sets of stamps: held, ready, offered, applied, lost. [ina-protocol.md](ina-protocol.md) gives
  their order and the reason.
"""


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(observe()), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
