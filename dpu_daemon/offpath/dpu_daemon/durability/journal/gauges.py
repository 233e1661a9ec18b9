"""Prometheus metrics of the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from offpath.dpu_daemon.durability.journal.log import Journal


class Journalled(Protocol):
    """The owner of the journal."""

    journal: Journal | None
    is_read_only: bool


NAMES: Final[dict[str, str]] = {
    "offpath_journal_failed": "1 after a journal write failed: no request is accepted.",
    "offpath_journal_records_total": "Records of 160 bytes written, including by earlier processes of this lineage.",
    "offpath_journal_checkpoints_total": "Checkpoints written by this process.",
    "offpath_journal_fill_ratio": "Records since the last checkpoint, divided by the ring's capacity; 0 after failure.",
}
"""Metric → help. A daemon without a journal reports zeros."""


def journal_metrics(owner: Journalled) -> dict[str, tuple[str, Callable[[], float]]]:
    """See `offpath.dpu_daemon.operation.metrics.Extra`."""
    journal = owner.journal
    give: dict[str, Callable[[], float]] = {
        "offpath_journal_failed": lambda: owner.is_read_only,
        "offpath_journal_records_total": lambda: journal.records if journal is not None else 0,
        "offpath_journal_checkpoints_total": lambda: journal.checkpoints if journal is not None else 0,
        "offpath_journal_fill_ratio": lambda: owner.journal.fill if owner.journal is not None else 0,
    }
    return {name: (text, give[name]) for name, text in NAMES.items()}
