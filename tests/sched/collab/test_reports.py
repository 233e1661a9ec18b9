"""What the book tells operators, on a population that can be counted by hand."""

from __future__ import annotations

import pytest

from offpath.sched.collab import reports
from offpath.sched.collab.book import Book
from offpath.sched.collab.policies import make
from offpath.sched.collab.records import JobSpec
from offpath.sched.collab.requirements import Properties, Requirement, text_of

S = 10**9
SMALL, LARGE = Properties.of({"mem": 1}), Properties.of({"mem": 8}, {"os": (14, 2)}, ["wifi"])
ANY, MUCH = Requirement(), Requirement(Properties.of({"mem": 4}, {"os": (14,)}, ["wifi"]))


def book() -> Book:
    """Three small devices and one large one have checked in; a job asks for any device, one for large ones."""
    made = Book(make("venn-paper", lambda below: 0), lambda below: 0, 600 * S)
    for number, properties in enumerate((SMALL, SMALL, SMALL, LARGE)):
        made.check_in(number, properties, S)
    made.open(JobSpec("any", "t", ANY), S)
    made.open(JobSpec("much", "t", MUCH), S)
    made.request("any", 0, 2, 100 * S, S)
    made.request("much", 0, 5, 100 * S, S)
    return made


def test_a_plan_names_for_each_group_what_it_can_use_and_what_it_gets() -> None:
    found = reports.plan(book())
    assert (found.supply, found.unused) == (4, 0)
    assert [(text_of(g.requirement), g.supply, g.given, g.first, g.waiting, g.remaining) for g in found.groups] == [
        ("mem >= 4, os >= 14, wifi", 1, 1, "much", 1, 5),
        ("any device", 4, 3, "any", 1, 2),
    ]


def test_a_report_changes_nothing_that_the_next_check_in_would_not() -> None:
    made, same = book(), book()
    for _ in range(3):
        reports.plan(made)
        reports.prospect(made, MUCH)
        reports.reasons(made, made.jobs["any"], S)
    same.refresh()
    assert made.supply.left == same.supply.left
    assert [made.check_in(9 + n, kind, 2 * S) for n, kind in enumerate((LARGE, SMALL))] == [
        same.check_in(9 + n, kind, 2 * S) for n, kind in enumerate((LARGE, SMALL))
    ]


def test_a_job_is_told_who_gets_the_devices_that_it_can_use() -> None:
    made = book()
    assert reports.reasons(made, made.jobs["any"], S) == [
        "it requires: any device",
        "4 check-ins of the last 24 hours meet that",
        "policy venn-paper gives it 3 of them now",
        "1 of them go to job much now",
        "its deadline is in 99 s",
    ]


def test_a_job_that_no_device_can_run_is_told_so() -> None:
    made = book()
    made.open(JobSpec("none", "t", Requirement(Properties.of({"mem": 99}))), S)
    assert reports.reasons(made, made.jobs["none"], S)[-1] == (
        "no device that has checked in within the last 24 hours meets that"
    )


def test_what_if_counts_the_jobs_that_wait_for_the_same_devices() -> None:
    found = reports.prospect(book(), MUCH)
    assert (found.supply, found.rivals) == (1, 2)
    assert found.shared == pytest.approx(1 / 3)
    assert found.wait_s(1, found.supply) == reports.DAY_S
    assert reports.prospect(book(), Requirement(Properties.of({"gpu": 1}))).wait_s(1, 0) == 0
