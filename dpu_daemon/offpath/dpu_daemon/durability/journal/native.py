"""Selects how the frequent entries are written: by the C module of the request path, or in Python.

The twin of the C function is `Journal.record` itself, with `codec.pack_decided` and `Ring.append`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from offpath.bindings import native
from offpath.dpu_daemon.durability.journal import codec, ring
from offpath.sched.jobs import commands, events

LAYOUT: Final = f"{codec.LAYOUT} {ring.LAYOUT}"
"""What the C function was written for; see JOURNAL_LAYOUT in bindings/csrc/path/path.h."""
Record = Callable[[memoryview, int, int, events.Event, Sequence[commands.Command], int, int], int]
"""``(memory, records, number, event, decided, times, now_ns)``: write the entry whose first record is ``number`` to a
ring of ``records``. Returns how many records it has. 0: nothing is written, because it is not one of the frequent
entries or not valid."""


def _chosen() -> Record | None:
    path = native.module_for("JOURNAL_LAYOUT", LAYOUT)
    if path is None:
        return None
    path.configure_journal(codec.CLASSES)
    found: Record = path.record
    return found


record: Final = _chosen()
"""None: Python alone."""
