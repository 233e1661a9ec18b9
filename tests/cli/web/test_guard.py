"""Who may read the page's data: every answer of the application passes the guard."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("starlette", reason="the extra `web` is not installed here")

from offpath.bindings.errors import OptionRefused
from offpath.cli.web.app import TYPES
from offpath.cli.web.guard import LOOPBACK, MOST_SESSIONS, SESSION_S, is_loopback, name_in, names_of

from ...support.web_page import Page

TOKEN = "t" * 24


@pytest.fixture
def page() -> Page:
    return Page()


DATA = ("/api/state", "/api/explain/1/2", "/api/job/resnet")


@pytest.mark.parametrize("path", DATA)
def test_data_needs_a_session(page: Page, path: str) -> None:
    answer = page.get(path)
    assert (answer.status, answer.code) == (401, "unauthenticated")
    assert page.get(path, cookie="offpath_web=guess").status == 401
    assert page.get(path, cookie="offpath_web=").status == 401
    assert page.get(path, authorization="Bearer ").status == 401
    assert page.get(path, cookie="=;\x00" + "a" * 5000).status == 401
    assert page.world.explained == []
    assert page.get(path, cookie=page.enter()).status == 200


def test_a_link_works_once_and_the_next_one_is_given_out(page: Page) -> None:
    first = page.keys.link
    cookie = page.enter()
    assert page.get("/api/session", authorization=f"Bearer {first}").status == 401
    assert page.links == [page.keys.link]
    assert page.get("/api/state", cookie=cookie).status == 200, "the first session lasts"


def test_the_cookie_is_for_this_page_alone(page: Page) -> None:
    cookie = page.get("/api/session", authorization=f"Bearer {page.keys.link}").headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))


def test_a_token_opens_sessions_again_and_again_and_serves_programs(page: Page) -> None:
    page = Page(TOKEN)
    for _ in range(2):
        assert page.get("/api/session", authorization=f"Bearer {TOKEN}").status == 200
    assert page.get("/api/state", authorization=f"Bearer {TOKEN}").status == 200
    assert page.get("/api/state", authorization=f"Bearer {TOKEN}x").status == 401
    assert page.get("/api/session", authorization="Bearer ").status == 401, "there is no link beside a token"
    assert page.links == []


def test_a_session_expires(page: Page) -> None:
    cookie = page.enter()
    page.now_s = SESSION_S - 1
    assert page.get("/api/state", cookie=cookie).status == 200
    page.now_s = SESSION_S
    assert page.get("/api/state", cookie=cookie).status == 401


def test_the_number_of_sessions_has_a_bound(page: Page) -> None:
    first = page.enter()
    for _ in range(MOST_SESSIONS):
        last = page.enter()
    assert page.get("/api/state", cookie=first).status == 401
    assert page.get("/api/state", cookie=last).status == 200


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/state", "/nothing"])
@pytest.mark.parametrize(
    "hosts", [("evil.example",), ("localhost.evil.example",), ("evil.example:7788",), ("",), (), ("localhost", "evil")]
)
def test_another_name_is_refused_on_every_path(page: Page, path: str, hosts: tuple[str, ...]) -> None:
    answer = page.get(path, hosts=hosts, cookie=page.enter())
    assert (answer.status, answer.code) == (421, "wrong_host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:7788", "[::1]:7788", "localhost.:80"])
def test_names_of_this_machine_are_accepted_with_any_port(page: Page, host: str) -> None:
    assert page.get("/", hosts=(host,)).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
@pytest.mark.parametrize("path", ["/", "/api/session", "/api/state"])
def test_methods_that_could_change_something_are_refused(page: Page, method: str, path: str) -> None:
    answer = page.get(path, method, cookie=page.enter())
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_sites_page_may_not_read_data(page: Page, site: str) -> None:
    answer = page.get("/api/state", cookie=page.enter(), sec_fetch_site=site)
    assert (answer.status, answer.code) == (403, "cross_site")
    assert page.get("/", sec_fetch_site=site).status == 200, "a link to the page is allowed"


@pytest.mark.parametrize("path", ["/", "/static/words.js", "/api/state", "/nothing"])
def test_each_answer_forbids_inline_scripts_frames_and_other_hosts(page: Page, path: str) -> None:
    for answer in (page.get(path), page.get(path, hosts=("evil",)), page.get(path, "POST")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_only_the_pages_own_files_are_served(page: Page) -> None:
    for name in TYPES:
        assert page.get(f"/static/{name}").status == 200
    for path in ("/static/../app.py", "/static/app.py", "/static/%2e%2e/app.py", "/static/", "/app.py"):
        answer = page.get(path)
        assert (answer.status, answer.code) == (404, "unknown_page"), path


def test_an_unchanged_state_is_not_sent_again(page: Page) -> None:
    cookie = page.enter()
    first = page.get("/api/state", cookie=cookie)
    again = page.get("/api/state", cookie=cookie, if_none_match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    page.board.take(page.world.read(), 1.0)
    assert page.get("/api/state", cookie=cookie, if_none_match=first.headers["etag"]).status == 200
    assert page.world.reads == 2, "no request of a browser is a poll"


def test_history_comes_whole_first_and_then_what_changed(page: Page) -> None:
    cookie = page.enter()
    whole = page.get("/api/state", cookie=cookie).document["history"]
    assert (whole["is_whole"], len(whole["rows"])) == (True, 7)
    rest = page.get(f"/api/state?run=run&after={whole['change']}", cookie=cookie).document["history"]
    assert (rest["is_whole"], rest["rows"]) == (False, [])
    for query in ("run=other&after=1", "run=run&after=99", "run=run&after=-1", f"run=run&after={'9' * 60}"):
        assert len(page.get(f"/api/state?{query}", cookie=cookie).document["history"]["rows"]) == 7, query


def test_an_explanation_is_found_by_both_names_of_a_request(page: Page) -> None:
    cookie = page.enter()
    found = page.get(f"/api/explain/{(1 << 63) + 1}/5", cookie=cookie).document
    assert (found["job"]["session"], found["holds"][0]["cause"]) == (str((1 << 63) + 1), "no_room")
    assert page.get("/api/explain/7", cookie=cookie).status == 200
    assert page.world.explained == [{"session": (1 << 63) + 1, "request_id": 5}, {"job": 7}]


def test_nonsense_for_an_identity_is_refused_before_the_daemon_sees_it(page: Page) -> None:
    cookie = page.enter()
    for identity in ("x", "1/2/3", "1/", "1/0", f"{1 << 64}", "-1", "1%202", "<script>"):
        answer = page.get(f"/api/explain/{identity}", cookie=cookie)
        assert (answer.status, answer.code) == (400, "bad_request"), identity
    assert page.world.explained == []
    unknown = page.get("/api/explain/1/404", cookie=cookie)
    assert (unknown.status, unknown.code) == (404, "unknown_request")
    assert page.get("/api/job/nothing", cookie=cookie).status == 404


def test_explanations_at_once_have_a_bound(page: Page) -> None:
    async def many() -> list[object]:
        return await asyncio.gather(*(page.board.call_source(lambda: 1) for _ in range(9)))

    assert asyncio.run(many()) == [1] * 4 + [None] * 5


def test_an_address_that_names_no_host_needs_a_name() -> None:
    assert names_of("127.0.0.1", ["Dpu7."]) == LOOPBACK | {"dpu7"}
    assert names_of("10.0.0.5", ["dpu7"]) == {"10.0.0.5", "dpu7"}
    assert names_of("0.0.0.0", ["dpu7"]) == {"dpu7"}
    for any_address in ("0.0.0.0", "::"):
        with pytest.raises(OptionRefused, match="--name"):
            names_of(any_address, [])


def test_loopback_is_recognised() -> None:
    assert [is_loopback(host) for host in ("localhost", "127.0.0.2", "::1", "10.0.0.5", "example")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert [name_in(host) for host in ("A:1", "[fe80::1]:2", "fe80::1", " b ")] == ["a", "fe80::1", "fe80::1", "b"]
