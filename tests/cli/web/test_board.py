"""The newest poll and its age, and explanations: what they cost, how many there are, and their errors."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("starlette", reason="the extra `web` is not installed here")

from offpath.bindings.errors import DaemonNotTrusted, OffpathError
from offpath.cli.admin_client import Refused
from offpath.cli.exits import DaemonUnreachable, NotPermitted
from offpath.cli.web.app import MOST_EXPLAINED_S
from offpath.cli.web.reader import Seen, pause_s

from ...support.web_page import Page
from ...support.web_world import daemon


@pytest.fixture
def page() -> Page:
    return Page()


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (Refused("unknown_job", "there is none"), 404, "unknown_job"),
        (Refused("unanswerable", "explain"), 400, "unanswerable"),
        (NotPermitted("uid 7 is not an operator"), 403, "denied"),
        (DaemonUnreachable("no daemon answers"), 503, "unreachable"),
        (DaemonNotTrusted("the socket is another user's"), 503, "unreachable"),
        (OffpathError("job: too long"), 400, "bad_request"),
    ],
)
def test_each_fault_of_an_explanation_has_its_status_and_its_reason(
    page: Page, fault: OffpathError, status: int, code: str
) -> None:
    page.world.fault = fault
    answer = page.get("/api/explain/1/2", cookie=page.enter())
    assert (answer.status, answer.document) == (status, {"code": code, "detail": str(fault)})


def test_a_jobs_name_that_is_too_long_is_a_bad_request(page: Page) -> None:
    cookie = page.enter()
    answer = page.get(f"/api/job/{'x' * 256}", cookie=cookie)
    assert (answer.status, answer.code) == (400, "bad_request")
    assert page.get(f"/api/job/{'x' * 255}", cookie=cookie).status == 404


def test_a_state_has_the_age_of_its_poll(page: Page) -> None:
    cookie = page.enter()
    page.now_s = 7.5
    assert page.get("/api/state", cookie=cookie).document["age_ms"] == 7500
    page.board.take(page.world.read(), 1.0)
    assert page.get("/api/state", cookie=cookie).document["age_ms"] == 0


def test_a_poll_without_the_daemon_leaves_the_charts_time_at_the_last_one_with_it(page: Page) -> None:
    cookie = page.enter()
    page.now_s = 3.0
    page.board.take(Seen(daemon(7)), 1.0)
    page.now_s = 5.0
    page.board.take(Seen(faults={"daemon": "it is not trusted"}), 1.0)
    found = page.get("/api/state", cookie=cookie).document
    assert (found["state"]["now_ms"], found["history"]["now_ms"]) == (5000, 3000)
    assert (found["state"]["daemon"], found["state"]["faults"]) == (None, {"daemon": "it is not trusted"})


def test_a_browser_that_missed_an_end_which_is_dropped_gets_the_whole_history(page: Page) -> None:
    cookie = page.enter()
    change = page.get("/api/state", cookie=cookie).document["history"]["change"]
    for now_s in (1.0, 700.0):
        page.now_s = now_s
        page.board.take(Seen(daemon(0)), 1.0)
    found = page.get(f"/api/state?run=run&after={change}", cookie=cookie).document["history"]
    assert (found["is_whole"], found["rows"]) == (True, [])
    again = page.get(f"/api/state?run=run&after={found['change']}", cookie=cookie).document["history"]
    assert not again["is_whole"]


def test_explanations_count_as_the_next_poll_does(page: Page) -> None:
    def explain() -> int:
        page.now_s += 0.03
        return 1

    async def explained() -> tuple[int | None, float, float]:
        found = await page.board.call_source(explain)
        return found, await page.board.poll(), await page.board.poll()

    assert asyncio.run(explained()) == (1, pytest.approx(pause_s(0.03, 1.0)), 1.0)


def test_explanations_between_two_polls_have_a_bound_in_time(page: Page) -> None:
    def explain() -> int:
        page.now_s += MOST_EXPLAINED_S * 0.6
        return 1

    async def explained() -> list[int | None]:
        found = [await page.board.call_source(explain) for _ in range(4)]
        assert await page.board.poll() == pytest.approx(pause_s(1.2 * MOST_EXPLAINED_S, 1.0))
        return [*found, await page.board.call_source(explain)]

    assert asyncio.run(explained()) == [1, 1, None, None, 1]
