"""Jobs that borrow nodes from a real collaboration controller, which is also killed."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.errors import OptionRefused, PeerGone
from offpath.bindings.wire import collab_admin as wire
from offpath.bindings.wire.collab_admin import Requirement
from offpath.cli.local.collab_controller import CollabController
from offpath.host_helper.collab.attributes import kept
from offpath.host_helper.collab.borrower import Borrower, JobWish
from offpath.host_helper.collab.controller import ANSWER_S, JobRefused, LocalController
from offpath.host_helper.collab.settings import VARIABLE, NodeTable, Settings, load

from ...support.processes import BOUND_S, until

Nodes = Callable[[], Mapping[int, NodeTable]]


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[CollabController]:
    with CollabController(tmp_path, {"name": "venn-paper", "period_s": 1, "lease_s": 60}) as running:
        yield running


def settings_of(controller: CollabController, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv(VARIABLE, str(controller.settings(poll_s=0.05, patience_s=0.5)))
    found = load()
    assert found is not None
    return found


def borrower(settings: Settings, wish: JobWish, answer_s: float = ANSWER_S) -> Borrower:
    _, _, key = settings.keys()
    return Borrower(LocalController(settings, answer_s), wish, key, settings.prefix, settings.poll_s)


def nodes(*speeds: int) -> Nodes:
    return lambda: {number: NodeTable(numbers={"speed": speed}) for number, speed in enumerate(speeds)}


def test_two_jobs_share_nodes_and_none_works_for_both(
    controller: CollabController, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(controller, monkeypatch)
    there = nodes(1, 1, 1, 9, 9)
    fast = borrower(settings, JobWish("fast", 2, 30, Requirement(numbers={"speed": 5})))
    any_ = borrower(settings, JobWish("any", 3, 30))
    for _ in range(3):
        with ThreadPoolExecutor(2) as threads:
            lent = [threads.submit(each.borrow, there, 20) for each in (any_, fast)]
        found = {"any": lent[0].result(), "fast": lent[1].result()}
        assert found == {"fast": [3, 4], "any": [0, 1, 2]}
        assert fast.has(3)
        assert not fast.has(0)
        fast.report(dict.fromkeys(found["fast"], True))
        any_.report(dict.fromkeys(found["any"], True))
        fast.end()
        any_.end()
    with controller.client() as client:
        lines = client.query(wire.JobsRequest(), wire.JobLines).jobs
    assert {each.job: each.rounds_completed for each in lines} == {"fast": 3, "any": 3}
    fast.close()
    any_.close()
    assert controller.summary().jobs == 0


def test_leases_outlive_a_kill_of_the_controller(controller: CollabController, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(controller, monkeypatch)
    one = borrower(settings, JobWish("one", 2, 30), 0.5)
    assert one.borrow(nodes(1, 1), BOUND_S) == [0, 1]
    controller.kill()
    with pytest.raises(PeerGone):
        one.report({0: True})
    controller.start()
    until(lambda: reported(one, {0: True, 1: True}))
    assert not one.has(0)
    one.end()
    assert len(one.borrow(nodes(1, 1), 20)) == 2
    one.close()


def reported(one: Borrower, results: dict[int, bool]) -> bool:
    """False: the controller was slower than its borrower waits here."""
    try:
        one.report(results)
    except PeerGone:
        return False
    return True


def test_a_controller_that_does_not_answer_is_given_up_after_the_patience(
    controller: CollabController, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(controller, monkeypatch)
    controller.kill()
    one = borrower(settings, JobWish("one", 1, 30))
    with pytest.raises(PeerGone):
        one.borrow(nodes(1), 0.3)
    one.close()


def test_a_round_that_gets_too_few_is_asked_for_anew(
    controller: CollabController, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(controller, monkeypatch)
    there = [1]
    looks = 0

    def growing() -> dict[int, NodeTable]:
        nonlocal looks
        looks += 1
        if one.left_s < 0.5 and looks > 1:
            there.append(1)
        return {number: NodeTable() for number in range(len(there))}

    one = borrower(settings, JobWish("one", 2, 1.0))
    assert len(one.borrow(growing, 20)) == 2
    with controller.client() as client:
        line = client.query(wire.ExplainRequest(job="one"), wire.Explanation).job
    assert line.round >= 0
    one.close()


def test_results_that_complete_the_quorum_wait_for_nodes_that_still_work(
    controller: CollabController, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = borrower(settings_of(controller, monkeypatch), JobWish("one", 5, 30, quorum_percent=60))
    one.borrow(nodes(*[1] * 5), 20)
    one.report({0: True, 1: True, 2: True, 3: False})
    with controller.client() as client:
        line = client.query(wire.ExplainRequest(job="one"), wire.Explanation).job
        assert (line.state, line.done, line.leased) == ("waits", 2, 2)  # node 4 works, and the third result waits
        assert not one.has(3)
        one.end()
        line = client.query(wire.ExplainRequest(job="one"), wire.Explanation).job
        assert (line.state, line.last_end, line.rounds_completed) == ("idle", "complete", 1)
    one.close()


def test_the_last_answer_sends_what_waits(controller: CollabController, monkeypatch: pytest.MonkeyPatch) -> None:
    one = borrower(settings_of(controller, monkeypatch), JobWish("one", 3, 30, quorum_percent=60))
    one.borrow(nodes(1, 1, 1), 20)
    one.report({0: True, 1: True})
    assert controller.summary().leases == 2
    one.report({2: False})
    assert controller.summary().leases == 0
    one.close()


class Noting(LocalController):
    """``noted``: kinds of answers to messages, and requests."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.noted: list[str] = []

    def ask(self, request: Any, wanted: Any) -> Any:
        found = super().ask(request, wanted)
        self.noted.append(request.kind)
        return found

    def exchange(self, messages: Any) -> Any:
        found = super().exchange(messages)
        self.noted += [each.kind for each in found]
        return found


def test_results_that_wait_are_sent_before_the_job_is_closed(
    controller: CollabController, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(controller, monkeypatch)
    link = Noting(settings)
    one = Borrower(link, JobWish("one", 3, 30, quorum_percent=60), settings.keys()[2], settings.prefix, 0.05)
    one.borrow(nodes(1, 1, 1), 20)
    one.report({0: True, 1: True})
    link.noted.clear()
    one.close()
    assert link.noted == ["recorded", "collab_close"]


def test_a_job_whose_controller_is_gone_is_closed_with_results_that_wait(
    controller: CollabController, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = borrower(settings_of(controller, monkeypatch), JobWish("one", 3, 30, quorum_percent=60), 0.5)
    one.borrow(nodes(1, 1, 1), BOUND_S)
    until(lambda: reported(one, {0: True, 1: True}))
    controller.kill()
    one.close()
    assert "1 results were not sent" in caplog.text


def test_a_node_is_not_used_after_its_lease(controller: CollabController, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is shorter than the round: both ends are known without a message."""
    settings, at = settings_of(controller, monkeypatch), [0.0]
    one = Borrower(LocalController(settings), JobWish("one", 1, 500.0), settings.keys()[2], settings.prefix, 0.0,
                   clock=lambda: at[0])  # fmt: skip
    assert one.borrow(nodes(1), 20) == [0]
    at[0] = 59.0
    assert one.has(0)
    assert 0 < one.left_s <= 1.0
    at[0] = 60.5
    assert not one.has(0)
    assert one.left_s == 0.0
    one.close()


class Lossy(LocalController):
    """The first answer to a request for devices comes late, and is lost."""

    is_lost = False

    def ask(self, request: Any, wanted: Any) -> Any:
        found = super().ask(request, wanted)
        if isinstance(request, wire.DevicesRequest) and not self.is_lost:
            self.is_lost = True
            time.sleep(1.2)
            raise PeerGone("lost")
        return found


def test_a_round_that_was_asked_for_twice_has_the_deadline_of_the_first_time(
    controller: CollabController, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(controller, monkeypatch)
    one = Borrower(Lossy(settings), JobWish("one", 1, 30.0), settings.keys()[2], settings.prefix, 0.05)
    one.borrow(nodes(1), 20)
    assert one.left_s < 29.0
    one.close()


def test_a_restarted_job_continues_with_the_next_round(
    controller: CollabController, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(controller, monkeypatch)
    _, _, key = settings.keys()
    link = LocalController(settings)
    assert Borrower(link, JobWish("one", 1, 2.0), key, settings.prefix, 0.05).borrow(nodes(1), 20) == [0]
    link.close()  # it dies here
    second = borrower(settings, JobWish("one", 1, 30))
    assert second.borrow(nodes(1), 20) == [0]
    second.report({0: True})
    second.close()


def test_a_wish_out_of_bounds_is_refused(controller: CollabController, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(controller, monkeypatch)
    for wish in (JobWish("one", 1_000_001, 30), JobWish("two", 1, 1e9)):
        one = borrower(settings, wish)
        with pytest.raises(JobRefused):
            one.borrow(nodes(1), 1)
        one.close()


@pytest.mark.parametrize("text", [
    "gateway = 1", "", "gateway = 'tcp://h:1'\nserver_key='x'", "x" * 100, "[node]\n", "gateway='udp://h:1'",
])  # fmt: skip
def test_invalid_settings_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(OptionRefused, match=VARIABLE):
        load()
    path.unlink()
    with pytest.raises(OptionRefused, match=VARIABLE):
        load()
    monkeypatch.delenv(VARIABLE)
    assert load() is None


def test_attributes_that_cannot_be_written_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The limit of a file's size stands for a full disk: a part can be written. What was there is not read any more."""
    path = str(tmp_path / "attributes.json")
    with kept(path) as table:
        table["7"] = NodeTable(numbers={"speed": 3})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with kept(path) as table:
            table["8"] = NodeTable(labels=["camera"])
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "attributes of nodes are not kept" in caplog.text
    assert Path(path).stat().st_size == 10
    with kept(path) as table:
        assert table == {}
        table["7"] = NodeTable()
    with kept(path) as table:
        assert table == {"7": NodeTable()}


def test_attributes_of_nodes_are_kept_for_the_next_job(tmp_path: Path) -> None:
    path = str(tmp_path / "attributes.json")
    with kept(path) as table:
        assert table == {}
        table["7"] = NodeTable(numbers={"speed": 3}, labels=["camera"])
    with kept(path) as table:
        assert table == {"7": NodeTable(numbers={"speed": 3}, labels=["camera"])}
    Path(path).write_bytes(b"\xff{")
    with kept(path) as table:
        assert table == {}
    with kept(None) as table:
        table["1"] = NodeTable()
    with pytest.raises(OptionRefused), kept(str(tmp_path)):
        pass
