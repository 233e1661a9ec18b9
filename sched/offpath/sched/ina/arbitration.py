"""Model of the root's admission: whole operations, final verdicts, capacity held from admission to delivery.

The root of a tree sees only requests of operations, in order of arrival. It guarantees safety alone: independent of
plans, at most ``capacity`` operations are in the tree at once, and all ranks get the same verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

from offpath.sched.errors import SchedError


class Mismatch(SchedError):
    """Ranks of a job describe one operation differently: it is refused and reported."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Identity of an operation. ``index``: its position in the order of issue on the job's communicator."""

    job: int
    incarnation: int
    epoch: int
    index: int
    nbytes: int
    dtype: str = "float32"


class Root:
    """The root of one tree, or of a sharing group."""

    def __init__(self, capacity: int = 1) -> None:
        if capacity < 1:
            raise ValueError("the capacity must be 1 or more")
        self.capacity = capacity
        self._held: dict[tuple[int, int], Operation] = {}
        self._verdicts: dict[tuple[int, int], tuple[Operation, bool]] = {}

    @property
    def held(self) -> int:
        """Number of operations in the tree."""
        return len(self._held)

    def admit(self, operation: Operation) -> bool:
        """Return the verdict; a repeated request (by another rank) gets the same.

        Raises: Mismatch: another rank named this index with other bytes, type or epoch, or the index is in the past.
        """
        key = operation.job, operation.incarnation
        known = self._verdicts.get(key)
        if known is not None:
            if operation.index == known[0].index and operation == known[0]:
                return known[1]
            if operation.index <= known[0].index:
                raise Mismatch(f"job {operation.job}: {operation} after {known[0]}")
        verdict = len(self._held) < self.capacity and key not in self._held
        if verdict:
            self._held[key] = operation
        self._verdicts[key] = operation, verdict
        return verdict

    def delivered(self, operation: Operation) -> None:
        """All ranks have the result: free the place. Idempotent."""
        key = operation.job, operation.incarnation
        if self._held.get(key) == operation:
            del self._held[key]

    def fence(self, job: int, incarnation: int) -> None:
        """The job ended or restarted: free its place and forget its verdicts."""
        self._held.pop((job, incarnation), None)
        self._verdicts.pop((job, incarnation), None)
