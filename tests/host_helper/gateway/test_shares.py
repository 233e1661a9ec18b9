"""What tenants share: each one finds its guaranteed part, whatever the others hold."""

from __future__ import annotations

import random

import pytest

from offpath.host_helper.gateway.shares import Shares


def test_one_tenant_alone_has_all() -> None:
    shares = Shares(10, ["ada"])
    assert shares.take("ada", 10)
    assert not shares.take("ada")


def test_one_of_several_has_half_at_most() -> None:
    shares = Shares(10, ["ada", "bob"])
    assert shares.take("ada", 5)
    assert not shares.take("ada")
    assert shares.take("bob", 5)


def test_two_that_hold_all_they_can_leave_a_third_its_part() -> None:
    shares = Shares(60, ["ada", "bob", "eve"])
    for name in ("ada", "bob"):
        while shares.take(name):
            pass
    assert (shares.of("ada"), shares.of("bob")) == (30, 20)
    assert shares.take("eve", 10)
    assert not shares.take("eve")


def test_other_tenants_share_it_after_a_reload_and_what_is_held_stays() -> None:
    shares = Shares(8, ["ada"])
    assert shares.take("ada", 8)
    shares.divide(8, ["ada", "bob"])
    assert not shares.take("ada")
    assert shares.held == 8
    shares.give("ada", 8)
    assert shares.take("ada", 4)
    assert shares.take("bob", 4)


@pytest.mark.parametrize("seed", range(20))
def test_the_guaranteed_part_is_there_in_any_order_of_events(seed: int) -> None:
    noise = random.Random(seed)
    names = [f"t{n}" for n in range(noise.randint(2, 9))]
    whole = noise.randint(2 * len(names), 500)
    shares = Shares(whole, names)
    guaranteed = whole // (2 * len(names))
    for _ in range(300):
        name = noise.choice(names)
        if noise.random() < 0.6:
            shares.take(name, noise.randint(1, 1 + whole // 4))
        elif shares.of(name):
            shares.give(name, noise.randint(1, shares.of(name)))
        assert shares.held == sum(map(shares.of, names)) <= whole
        assert all(shares.of(each) <= max(whole // 2, 1) for each in names)
        for each in names:
            if missing := max(guaranteed - shares.of(each), 0):
                assert shares.take(each, missing)
                shares.give(each, missing)
