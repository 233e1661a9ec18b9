"""What Prometheus reads of the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from offpath.dpu_daemon.durability.journal.log import Journal


class Journalled(Protocol):
    """Who writes the journal."""

    journal: Journal | None
    is_read_only: bool


NAMES: Final[dict[str, str]] = {
    "offpath_journal_failed": "1 once the journal could not be written: nothing is accepted any more.",
    "offpath_journal_records_total": "Records of 160 bytes written, those of this lineage's former processes included.",
    "offpath_journal_checkpoints_total": "Checkpoints written by this process.",
    "offpath_journal_fill_ratio": "Records since the last checkpoint, over what the ring holds.",
}
"""Metric to help. A daemon without a journal gives zeros."""


def journal_metrics(owner: Journalled) -> dict[str, tuple[str, Callable[[], float]]]:
    """See `offpath.dpu_daemon.operation.metrics.Extra`."""
    journal = owner.journal
    give: dict[str, Callable[[], float]] = {
        "offpath_journal_failed": lambda: owner.is_read_only,
        "offpath_journal_records_total": lambda: journal.records if journal is not None else 0,
        "offpath_journal_checkpoints_total": lambda: journal.checkpoints if journal is not None else 0,
        "offpath_journal_fill_ratio": lambda: journal.fill if journal is not None else 0,
    }
    return {name: (text, give[name]) for name, text in NAMES.items()}
