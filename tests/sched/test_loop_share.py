"""Who may use the loop's thread: in virtual time, no loop."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from offpath.sched.loop_share import BURST_NS, CEILING, MOST_CHARGED_NS, SLICE_NS, WINDOW_NS, LoopShares, Share

S = 1_000_000_000


@dataclass
class Tenant:
    """One that wants the thread for ``piece_ns`` each ``every_ns``; 0: always."""

    share: Share
    piece_ns: int
    every_ns: int = 0
    due_ns: int = 0
    requested_ns: int = 0
    longest_wait_ns: int = 0
    paused_ns: int = 0


class Thread:
    """Serves tenants in turn, one piece each, and none before it is due."""

    def __init__(self, *wants: tuple[int, int, int]) -> None:
        """Each: weight, length of a piece, time between two; the last 0: it always wants."""
        self.now_ns = 7 * S
        self.shares = LoopShares()
        self.tenants = [
            Tenant(self.shares.join(weight), piece_ns, every_ns, requested_ns=self.now_ns)
            for weight, piece_ns, every_ns in wants
        ]

    def run(self, for_ns: int) -> list[float]:
        """Returns: each tenant's part of the time."""
        began_ns, before = self.now_ns, [tenant.share.used_ns for tenant in self.tenants]
        while self.now_ns < began_ns + for_ns:
            served = [self._serve(tenant) for tenant in self.tenants]
            if not any(served):
                self.now_ns = min(max(tenant.due_ns, tenant.requested_ns) for tenant in self.tenants)
        passed_ns = self.now_ns - began_ns
        return [(t.share.used_ns - was) / passed_ns for t, was in zip(self.tenants, before, strict=True)]

    def _serve(self, tenant: Tenant) -> bool:
        if self.now_ns < max(tenant.due_ns, tenant.requested_ns):
            return False
        tenant.longest_wait_ns = max(tenant.longest_wait_ns, self.now_ns - tenant.requested_ns)
        self.now_ns += tenant.piece_ns
        tenant.requested_ns = (
            max(self.now_ns, tenant.requested_ns + tenant.every_ns) if tenant.every_ns else self.now_ns
        )
        share = tenant.share
        share.used_ns += tenant.piece_ns
        if share.used_ns >= share.limit_ns:
            tenant.due_ns = self.shares.settle(share, self.now_ns)
            tenant.paused_ns += max(0, tenant.due_ns - self.now_ns)
        return True


pieces = st.integers(20_000, 200_000)
briefly = settings(max_examples=20)
"""An example is some ten thousand turns."""


@briefly
@given(piece_ns=pieces, idle=st.lists(st.integers(1, 1000), max_size=5))
def test_a_tenant_alone_is_never_paused(piece_ns: int, idle: list[int]) -> None:
    thread = Thread((1, piece_ns, 0))
    for weight in idle:
        thread.shares.join(weight)
    assert thread.run(S // 4) == [1.0]
    assert thread.tenants[0].paused_ns == 0


def test_a_tenant_whose_neighbour_was_active_long_ago_is_not_paused() -> None:
    thread = Thread((1, 10_000, 0), (1, 10_000, 10_000_000_000))
    thread.run(S)
    thread.tenants[0].paused_ns = 0
    thread.run(S)
    assert thread.tenants[0].paused_ns == 0


@briefly
@given(wants=st.lists(st.tuples(st.integers(1, 8), pieces), min_size=2, max_size=6))
def test_who_always_wants_the_thread_gets_its_weights_part_and_is_never_starved(wants: list[tuple[int, int]]) -> None:
    """Whatever the pieces cost: who has dear ones is read more rarely."""
    thread = Thread(*((weight, piece_ns, 0) for weight, piece_ns in wants))
    thread.run(S // 4)
    weights = sum(weight for weight, _ in wants)
    for (weight, _), part in zip(wants, thread.run(S), strict=True):
        assert part >= 0.9 * min(weight / weights, 1 / len(wants)), (part, weight / weights)
        assert part <= 1.1 * weight / weights + 0.02, (part, weight / weights)


@briefly
@given(flood_ns=pieces, light_ns=st.integers(10_000, 30_000), weight=st.integers(1, 4))
def test_a_light_tenant_has_what_it_wants_beside_one_that_floods(flood_ns: int, light_ns: int, weight: int) -> None:
    """It wants a fifth of the thread; it is never paused, and waits for one piece of the other at most."""
    thread = Thread((weight, flood_ns, 0), (1, light_ns, 5 * light_ns + flood_ns))
    thread.run(S // 4)
    thread.tenants[1].longest_wait_ns = 0
    flood, _ = thread.run(S // 2)
    light = thread.tenants[1]
    assert light.paused_ns == 0
    assert light.longest_wait_ns <= flood_ns
    assert flood <= max(weight / (weight + 1), CEILING) + 0.02


def test_a_busy_tenant_beside_a_nearly_idle_one_has_what_that_leaves_of_the_ceiling() -> None:
    thread = Thread((1, 10_000, 0), (1, 10_000, 10_000_000))
    thread.run(S)
    busy, idle = thread.run(S)
    assert abs(busy - (CEILING - idle)) < 0.02


@briefly
@given(hole_ns=st.integers(MOST_CHARGED_NS, 10 * S))
def test_a_thread_that_the_machine_kept_from_running_costs_a_tenant_a_bounded_pause(hole_ns: int) -> None:
    thread = Thread((1, 10_000, 0), (1, 10_000, 100_000))
    thread.run(2 * WINDOW_NS)
    light = thread.tenants[1].share
    thread.now_ns += hole_ns
    light.used_ns += hole_ns
    assert thread.shares.settle(light, thread.now_ns) <= thread.now_ns + 2 * MOST_CHARGED_NS - BURST_NS + SLICE_NS


def test_a_flood_is_seen_within_a_window() -> None:
    thread = Thread((1, 10_000, 0), (1, 10_000, 100_000))
    thread.run(WINDOW_NS * 3 // 2)
    assert thread.tenants[0].paused_ns > 0
