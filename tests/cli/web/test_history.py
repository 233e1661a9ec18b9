"""What the chart remembers: a span per lease and GPU, from its begin to its end, within bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from offpath.cli.web.history import Held, History


def held(lease: int, *, start: int = 0, slices: int = 1, gpu: str = "g", held_ms: float = 0.0) -> Held:
    return Held(lease, 1, gpu, start, slices, "1g.5gb", "ada", held_ms)


def spans(history: History, after: int = 0) -> list[tuple[int, float, float | None]]:
    return [(span.held.lease, span.begin_ms, span.end_ms) for span in history.since(after)]


def test_a_span_begins_when_its_lease_did_and_ends_at_the_poll_that_misses_it() -> None:
    history = History()
    history.observe(1000, [held(1, held_ms=400)])
    history.observe(2000, [held(1, held_ms=1400)])
    assert spans(history) == [(1, 600, None)]
    history.observe(3000, [])
    assert spans(history) == [(1, 600, 3000)]


def test_a_span_ends_no_later_than_the_next_lease_begins_on_its_slices() -> None:
    history = History()
    history.observe(1000, [held(1), held(2, start=4)])
    history.observe(2000, [held(3, held_ms=700)])
    assert spans(history) == [(1, 1000, 1300), (2, 1000, 2000), (3, 1300, None)]


def test_only_what_changed_is_given_again() -> None:
    history = History()
    history.observe(1000, [held(1), held(2, start=1)])
    first = history.change
    history.observe(2000, [held(1), held(2, start=1)])
    assert spans(history, first) == []
    history.observe(3000, [held(2, start=1)])
    assert spans(history, first) == [(1, 1000, 3000)]
    assert spans(history, history.change) == []


def test_a_lease_that_was_opened_again_or_moved_is_another_span() -> None:
    history = History()
    history.observe(1000, [held(1)])
    history.observe(2000, [Held(1, 2, "g", 0, 1, "1g.5gb", "ada", 100)])
    history.observe(3000, [Held(1, 2, "h", 0, 1, "1g.5gb", "ada", 1100)])
    assert spans(history) == [(1, 1000, 1900), (1, 1900, 3000), (1, 1900, None)]


def test_a_gang_has_a_span_on_each_of_its_gpus() -> None:
    history = History()
    history.observe(1000, [held(1, gpu="a"), held(1, gpu="b")])
    assert [span.held.gpu for span in history.since(0)] == ["a", "b"]


def test_what_is_older_than_the_window_is_dropped() -> None:
    history = History(window_ms=5000)
    history.observe(1000, [held(1)])
    history.observe(2000, [held(2, start=1, held_ms=900_000)])
    assert spans(history) == [(1, 1000, 2000), (2, -3000, None)], "a begin is in the window too"
    history.observe(7001, [held(2, start=1)])
    assert spans(history) == [(2, -3000, None)]


def test_the_last_change_of_what_was_dropped_is_known() -> None:
    """Who has seen only changes before it may take a dropped span for one that lasts."""
    history = History(window_ms=5000)
    history.observe(1000, [held(1)])
    history.observe(2000, [])
    assert history.dropped == 0
    history.observe(7001, [])
    assert (history.dropped, spans(history)) == (2, [])


@given(st.lists(st.frozensets(st.integers(0, 30), max_size=20), max_size=40), st.integers(1, 12))
def test_the_bound_holds_and_those_that_last_are_kept(polls: list[frozenset[int]], most: int) -> None:
    history = History(most=most)
    for n, leases in enumerate(polls):
        history.observe(1000.0 * n, [held(lease, start=lease) for lease in sorted(leases)])
        assert len(history) <= most
        lasting = {span.held.lease for span in history.since(0) if span.end_ms is None}
        assert lasting <= leases
        assert len(lasting) == min(len(leases), most) or len(leases) > most
        changes = [span.change for span in history.since(0)]
        assert changes == sorted(changes)
