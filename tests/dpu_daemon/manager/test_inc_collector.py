"""The garbage collector's settings while a job manager computes rounds."""

from __future__ import annotations

import gc

import pytest

from offpath.dpu_daemon.manager.inc.collector import YOUNG, settled


def fail_inside(seen: list[tuple[tuple[int, int, int], int]]) -> None:
    with settled():
        seen.append((gc.get_threshold(), gc.get_freeze_count()))
        raise KeyError


def test_it_runs_rarely_inside_and_as_before_afterwards_also_after_an_error() -> None:
    before = gc.get_threshold()
    seen: list[tuple[tuple[int, int, int], int]] = []
    with pytest.raises(KeyError):
        fail_inside(seen)
    ((inside, frozen),) = seen
    assert inside == (YOUNG, *before[1:])
    assert frozen > 0
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
