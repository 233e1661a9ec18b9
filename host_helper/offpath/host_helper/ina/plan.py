"""Evaluates the current epoch's Plan once for each operation. All ranks have the same inputs, so they decide alike."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from offpath.sched.ina.decision import Epoch, decision
from offpath.sched.ina.patterns import Timed
from offpath.sched.ina.protocol.records import EpochRecord, Wants


class Plan:
    """The position in the step, and the Plan's decision for the next operation."""

    def __init__(self) -> None:
        self._record: EpochRecord | None = None
        self._epoch: Epoch | None = None
        self._verdicts: list[bool] = []

    def adopt(self, record: EpochRecord) -> None:
        """``record`` takes effect."""
        self._record, self._epoch = record, _epoch(record)

    def begin(self) -> None:
        """A step begins."""
        self._verdicts.clear()

    def wants(self) -> bool:
        """Whether the step's next operation requests INA. One beyond the pattern does not, because the Plan excludes
        it.
        """
        if self._record is None or self._record.grant is None:
            return False
        if self._record.wants is Wants.ALWAYS or self._epoch is None:
            return True
        place = len(self._verdicts)
        return place < len(self._epoch.pattern.starts) and _wants(self._epoch, place, tuple(self._verdicts))

    @property
    def is_last(self) -> bool:
        """Whether the next operation is known to be its step's last: afterwards the tree is free for a while."""
        if self._record is None or self._record.wants is not Wants.PLAN or self._epoch is None:
            return False
        return len(self._verdicts) == len(self._epoch.pattern.starts) - 1

    def ended(self, *, used_ina: bool) -> None:
        """Record how the operation ran, on all ranks."""
        if self._epoch is not None and len(self._verdicts) <= len(self._epoch.pattern.starts):
            self._verdicts.append(used_ina)


def _epoch(record: EpochRecord) -> Epoch | None:
    """None: the record has no step to decide with."""
    step = record.step
    if step is None or not all((*step.plain_ns, *step.ina_ns)):
        return None
    timed = Timed(record.job, step.starts_ns, step.plain_ns, step.ina_ns, step.duration_ns)
    return Epoch(record.number, timed, record.is_shared, Fraction(step.trust_percent, 100))


@lru_cache(maxsize=4096)
def _wants(epoch: Epoch, place: int, verdicts: tuple[bool, ...]) -> bool:
    return decision(epoch, place, verdicts).wants_ina
