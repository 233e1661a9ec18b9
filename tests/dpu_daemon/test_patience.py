"""A restarted daemon waits while evidence of life comes in, and no longer than it may. Virtual time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from offpath.dpu_daemon.hosts.patience import Patience


def ended_at(patience: Patience, evidence: list[float], start: float = 0.0) -> float:
    """The time of the look that ends it, if each look comes when it is due."""
    now, waiting = start, sorted(evidence)
    while (wait := patience.next_look_s(now)) is not None:
        while waiting and waiting[0] <= now + wait:
            patience.seen(waiting.pop(0))
        now += wait
    return now


def test_without_evidence_it_ends_after_the_first_time() -> None:
    assert ended_at(Patience(0.0, 3.0, 30.0), []) == 3.0


def test_each_piece_of_evidence_extends_it_by_the_same_time() -> None:
    """`durability.adopt_ms` counts from the last sign of life."""
    assert ended_at(Patience(0.0, 3.0, 30.0), [2.0, 4.5, 7.0]) == 10.0


def test_evidence_after_the_end_is_too_late() -> None:
    assert ended_at(Patience(0.0, 3.0, 30.0), [3.5, 4.0]) == 3.0


def test_evidence_without_end_does_not_extend_it_beyond_the_bound() -> None:
    """`durability.adopt_max_ms`, 30 s here."""
    assert ended_at(Patience(0.0, 3.0, 30.0), [float(n) for n in range(100)]) == 30.0


def test_a_bound_below_the_first_time_takes_nothing_from_it() -> None:
    assert ended_at(Patience(0.0, 3.0, 0.0), [1.0]) == 3.0


def test_a_process_that_slept_past_the_end_reads_what_came_meanwhile_before_it_gives_up() -> None:
    patience = Patience(0.0, 3.0, 30.0)
    assert patience.next_look_s(5.0) == 0.0, "late, and perhaps with unread evidence"
    patience.seen(5.0)
    assert patience.next_look_s(5.0) == 3.0
    assert patience.next_look_s(8.0) == 0.0
    assert patience.next_look_s(8.0) is None


@given(
    st.lists(st.floats(0, 100), max_size=30), st.floats(0, 50), st.floats(0, 10), st.floats(0, 60)
)  # fmt: skip
def test_it_ends_once_between_the_first_time_and_the_bound(
    evidence: list[float], start: float, each: float, most: float
) -> None:
    end = ended_at(Patience(start, each, most), evidence, start)
    assert start + each - 1e-6 <= end <= start + max(each, most) + 1e-6
