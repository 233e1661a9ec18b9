"""docs/states.md shows the transitions that the job book makes, and all of its states."""

from __future__ import annotations

import re

import pytest

from offpath.sched.jobs.records import Job, Lease
from offpath.sched.jobs.states import JobState, LeaseState

from .support import states


@pytest.mark.not_fast("compiled code assigns a state without its descriptor")
def test_the_page_is_what_the_job_book_does() -> None:
    before = Job.__dict__["state"], Lease.__dict__["state"]
    made = states.page(states.observe())
    assert (Job.__dict__["state"], Lease.__dict__["state"]) == before
    assert states.PAGE.read_text("utf-8") == made, "write it anew: ./scripts/states"


@pytest.mark.parametrize("kind", [JobState, LeaseState])
def test_every_state_that_is_used_is_on_the_page(kind: type[JobState | LeaseState]) -> None:
    page = states.PAGE.read_text("utf-8")
    missing = [state.name for state in kind if not re.search(rf"--> {state.name}\b", page)]
    assert missing == (["PLACED"] if kind is JobState else [])
