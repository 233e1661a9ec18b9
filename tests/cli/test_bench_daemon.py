"""`offpath bench daemon` on a real daemon: the figures that do not depend on time keep their budget."""

from __future__ import annotations

from offpath.cli.bench.daemon_idle import RATES, idle_lines, of_one_daemon

from ..support.command import offpath


def test_a_daemon_at_rest_and_after_a_thousand_requests_stays_below_its_memory() -> None:
    done = offpath("bench", "daemon", "--quick", "--json", "--only", "memory")
    assert done.code == 0, done.err
    found = done.document
    assert 20 < found["rest_mib"] < 60
    assert 20 < found["rest_after_1000_mib"] < 60


def test_an_idle_daemon_that_spins_sleeps_and_one_with_requests_wakes() -> None:
    """Counted in wake-ups: a daemon that polled while idle would have a core's time, whatever the machine does."""
    idle, *busy = of_one_daemon(150, 1.0, 0.5)
    assert [row["rate"] for row in busy] == list(RATES)
    assert idle["cpu_percent"] < 50
    assert all(row["wakeups"] > 0 and row["cpu_us"] > 0 and row["p50_us"] > 0 for row in busy)
    assert len(idle_lines([idle, *busy])) == 5
