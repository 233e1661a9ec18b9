"""The integer program on small cases, against all plans; policies are never better than it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random

import pytest

from offpath.sched.collab.baselines import By, Ordered
from offpath.sched.collab.exact import Optimum, SmallCase, optimum, total_of
from offpath.sched.collab.policies import COLLAB_POLICIES, make
from offpath.sched.errors import SchedError


def small(seed: int, devices: int, jobs: int, most: int) -> SmallCase:
    random = Random(seed)
    return SmallCase(
        tuple(random.randrange(1, 8) for _ in range(devices)),
        tuple((random.randrange(3), random.randrange(1, most + 1)) for _ in range(jobs)),
    )


def by_trying_all(case: SmallCase) -> int | None:
    """Every device gets one of the jobs or none."""
    best: int | None = None
    for plan in product(range(-1, len(case.jobs)), repeat=len(case.arrivals)):
        places = [[device for device, got in enumerate(plan) if got == job] for job in range(len(case.jobs))]
        if all(
            len(mine) == demand and all(case.arrivals[device] >> bit & 1 for device in mine)
            for mine, (bit, demand) in zip(places, case.jobs, strict=True)
        ):
            total = sum(mine[-1] + 1 for mine in places)
            best = total if best is None else min(best, total)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_it_is_the_best_of_all_plans(seed: int) -> None:
    case = small(seed, devices=6, jobs=2, most=2) if seed % 2 else small(seed, devices=5, jobs=3, most=2)
    assert optimum(case) == Optimum(by_trying_all(case), is_proven=True)


def test_figure_3() -> None:
    """Two Emoji jobs can use every second device only, the Keyboard job all: the others are for it."""
    case = SmallCase((0b11, 0b10) * 9, ((0, 3), (0, 3), (1, 3)))
    assert optimum(case).total == 5 + 11 + 6
    assert total_of(make("venn-irs", Random(0).randrange), case) == 5 + 11 + 6
    assert total_of(make("fifo", Random(0).randrange), case) == 5 + 11 + 6
    keyboard_first = SmallCase(case.arrivals, case.jobs[::-1])
    fifo = total_of(make("fifo", Random(0).randrange), keyboard_first)
    assert fifo is not None
    assert fifo > 22, "it gives the scarce devices to the job that came first"


@pytest.mark.parametrize("name", sorted(COLLAB_POLICIES))
def test_no_policy_is_better(name: str) -> None:
    found = 0
    for seed in range(12):
        case = small(seed, devices=24, jobs=3, most=5)
        total, best = total_of(make(name, Random(seed).randrange), case), optimum(case)
        assert best.is_proven
        if total is not None:
            found += 1
            assert best.total is not None
            assert total >= best.total
    assert found > 3


class Wrong(Ordered):
    """Asks for the first job, whatever the device is."""

    def candidates(self, atom: int) -> Iterator[str]:
        return super().candidates(0b11)


def test_a_policy_that_names_a_job_which_cannot_use_the_device_is_found() -> None:
    with pytest.raises(SchedError, match="cannot use"):
        total_of(Wrong("wrong", By.ARRIVAL), SmallCase((0b10,), ((0, 1),)))
