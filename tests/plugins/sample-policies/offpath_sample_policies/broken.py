"""Policies that work for some questions and then do what none may."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from offpath.sched.gpu.policy import Demand, Placement, Refusal
from offpath_sample_policies import WorstFit

GOOD = 20
"""Placements before the first bad one."""


class _Broken(WorstFit):
    def __init__(self) -> None:
        super().__init__()
        self._placed = 0

    def place(self, demand: Demand, now_ns: int) -> Placement | Refusal:
        said = super().place(demand, now_ns)
        self._placed += isinstance(said, Placement)
        return self.spoilt(said) if self._placed > GOOD and isinstance(said, Placement) else said

    def spoilt(self, said: Placement) -> Placement:
        raise NotImplementedError


class Raises(_Broken):
    """A bug."""

    def spoilt(self, said: Placement) -> Placement:
        raise KeyError(f"lease {said.lease}\nwas here a moment ago")


class Nonsense(_Broken):
    """A lane that the lease has not."""

    def spoilt(self, said: Placement) -> Placement:
        return replace(said, lane=said.lane + 1_000)


class Stranger(_Broken):
    """Another lease, whosever it is; or none that ever was."""

    def spoilt(self, said: Placement) -> Placement:
        tenant = self.leases[said.lease].view.tenant
        others = [lease for lease, warm in self.leases.items() if warm.view.tenant != tenant]
        return replace(said, lease=others[0] if others else said.lease + 1_000)


class Sleeps(_Broken):
    """Far beyond any deadline, although the answer would be right."""

    def spoilt(self, said: Placement) -> Placement:
        time.sleep(30)
        return said


class Dies(_Broken):
    """In the middle of a question."""

    def spoilt(self, said: Placement) -> Placement:
        os._exit(3)


class Forks(WorstFit):
    """Leaves a process behind, and talks."""

    def __init__(self) -> None:
        super().__init__()
        if not os.fork():
            time.sleep(600)
            os._exit(0)
        print("made", flush=True)


class Prints(WorstFit):
    """Talks without end when it is asked."""

    def place(self, demand: Demand, now_ns: int) -> Placement | Refusal:
        while True:
            print("x" * 1_000, flush=True)


class Unmade(WorstFit):
    """Cannot even be made."""

    def __init__(self) -> None:
        raise RuntimeError("no licence")
