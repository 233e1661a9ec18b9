"""What the controller remembers is a cache: lost or damaged it is made anew; and the jobs that it knows."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offpath.dpu_daemon.controller.jobs import MOST_RANKS_PER_HOST, REST_NS, JobRefused, Jobs
from offpath.dpu_daemon.controller.seal import TermSeal
from offpath.dpu_daemon.controller.store import ASIDE, Kept, Store
from offpath.dpu_daemon.controller.trust import BY_OPERATOR, TERM_NOT_ISSUED, Quarantine, Trust
from offpath.sched.ina.protocol.records import EpochRecord, Grant, RankState
from offpath.sched.ina.sharing.tracking import Tracking
from offpath.sched.placement.baselines import FirstN
from offpath.sched.topology import imported

from ...support.namespaces import needs_namespaces

ROOT = Path(__file__).resolve().parents[3]
TOPOLOGY = imported.regular("leaf-spine:2x2x1")
H = TOPOLOGY.names
SEAL = TermSeal(b"a controller's secret key")


def opened(path: Path) -> Store:
    store = Store(str(path), SEAL.is_proven)
    store.open()
    return store


def jobs(store: Store | None = None, most_ranks: int = 2) -> Jobs:
    return Jobs(TOPOLOGY, FirstN(), store or Store("", SEAL.is_proven), most_ranks)


def state(job: str, rank: int, incarnation: int = 1, ranks: int = 2, is_gone: bool = False) -> RankState:
    return RankState(job, incarnation, rank, ranks, is_gone=is_gone)


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    store = opened(tmp_path / "state")
    assert store.kept == Kept()
    store.term(7, SEAL.proof(7))
    store.job("a", {"name": "a"})
    store.job("b", {"name": "b"})
    store.forget("a")
    store.ledger({"s0 b 1": {"job": "b"}})
    store.close()
    assert os.stat(tmp_path / "state").st_mode & 0o777 == 0o600
    assert opened(tmp_path / "state").kept == Kept(7, ({"name": "b"},), ({"job": "b"},))


@pytest.mark.parametrize(
    "damage", ["text", "cut", "form", "row", "term", "last", "forged", "host", "table"]
)  # fmt: skip
def test_a_file_that_is_none_of_ours_is_made_anew(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "state"
    store = opened(path)
    for n in range(200):
        store.job(f"job{n}", {"name": "x" * 100})
    store.close()
    if damage == "text":
        path.write_bytes(b"no database " * 1000)
    elif damage == "cut":
        os.truncate(path, path.stat().st_size // 2)
    else:
        with sqlite3.connect(path) as database:
            database.execute({
                "form": "PRAGMA user_version=99",
                "row": "UPDATE job SET data='[1' WHERE name='job3'",
                "term": "INSERT INTO term VALUES (1, -4, '')",
                "last": f"INSERT INTO term VALUES (1, {(1 << 31) - 1}, '')",
                "forged": f"INSERT INTO term VALUES (1, {(1 << 31) - 2}, '{SEAL.proof(7)}')",
                "host": "INSERT INTO quarantine VALUES ('h1', '[]')",
                "table": "DROP TABLE ledger",
            }[damage])  # fmt: skip
        database.close()
    before = path.read_bytes()
    store = opened(path)
    assert store.remade
    assert store.kept == Kept()
    assert Path(f"{path}{ASIDE}").read_bytes() == before, "kept for people to look at"
    store.term(3, SEAL.proof(3))
    store.close()
    again = opened(path)
    assert again.kept.term == 3
    again.close()


def test_a_place_where_nothing_can_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    store = opened(tmp_path / "missing" / "state")
    store.term(3, SEAL.proof(3))
    store.job("a", {})
    store.close()


def test_a_file_that_another_process_has_locked_is_not_moved_aside(tmp_path: Path) -> None:
    """It says nothing against the file, which may be that of a controller that runs."""
    path = tmp_path / "state"
    running = opened(path)
    running.term(7, SEAL.proof(7))
    lock = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN EXCLUSIVE')"
    command = [sys.executable, "-c", f"{lock}; print(flush=True); sys.stdin.read()", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"\n"
        second = opened(path)
        assert (second.kept, second.remade) == (Kept(), "")
        assert "locked" in second.lost
        assert holder.stdin is not None
        holder.stdin.close()
    assert not Path(f"{path}{ASIDE}").exists()
    again = opened(path)
    assert again.kept.term == 7
    again.close()


FULL = """
import sys
from pathlib import Path
from offpath.dpu_daemon.controller.seal import TermSeal
from offpath.dpu_daemon.controller.store import ASIDE, Kept, Store
seal, path = TermSeal(b"key"), Path(sys.argv[1]) / "state"
def opened():
    store = Store(str(path), seal.is_proven)
    store.open()
    return store
store = opened()
store.term(7, seal.proof(7))
if sys.argv[2] == "full":
    with open(path.parent / "filler", "wb", buffering=0) as filler:
        try:
            while filler.write(bytes(4096)):
                pass
        except OSError:
            pass
    for n in range(100):
        store.job(f"job{n}", {"name": "x" * 4000})
    assert "full" in store.lost, store.lost
elif sys.argv[2] == "replaced":
    path.unlink()
    path.write_bytes(b"no database " * 100)
    store.term(8, seal.proof(8))
else:
    import subprocess
    store.close()
    subprocess.run(["mount", "-o", "remount,ro", str(path.parent)], check=True)
store.close()
again = opened()
assert again.kept.term == (0 if sys.argv[2] == "replaced" else 7), again.kept
assert bool(again.remade) == (sys.argv[2] == "replaced"), again.remade
again.term(9, seal.proof(9))
again.job("a", {"name": "x" * 9000})
assert bool(again.lost) == (sys.argv[2] != "replaced"), again.lost
"""


@pytest.mark.parametrize("what", ["full", "read-only", "replaced"])
def test_a_place_that_goes_bad_loses_what_is_written_then_and_no_more(tmp_path: Path, what: str) -> None:
    """A file system of 256 KiB in a mount namespace of its own."""
    script = 'mount -t tmpfs -o size=256k offpath "$1" && exec "$2" -c "$3" "$1" "$4"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable, FULL, what]
    needs_namespaces("mount")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_hosts_are_full_when_their_ranks_are_and_free_again_when_the_job_is_cancelled() -> None:
    known = jobs(most_ranks=2)
    assert known.submit("a", 4, (), 1, 0).hosts == H[:4]
    assert known.submit("b", 0, (H[1], H[0]), 1, 0).rank_hosts() == (H[1], H[0])
    with pytest.raises(JobRefused, match="no_room"):
        known.submit("c", 3, (), 1, 0)
    with pytest.raises(JobRefused, match="no_room"):
        known.submit("c", 0, (H[0],), 1, 0)
    known.cancel("b")
    assert known.submit("c", 0, (H[0],), 1, 0).state == "waiting"


@pytest.mark.parametrize(
    ("hosts", "on", "code"),
    [(0, (), "hosts"), (1, (H[0],), "hosts"), (0, (H[0], H[0]), "hosts"), (0, ("far",), "unknown_host"),
     (9, (), "no_room")],
)  # fmt: skip
def test_a_wish_that_makes_no_sense_is_refused(hosts: int, on: tuple[str, ...], code: str) -> None:
    with pytest.raises(JobRefused) as refused:
        jobs().submit("a", hosts, on, 1, 0)
    assert refused.value.code == code


def test_a_job_that_nobody_submitted_is_known_from_its_ranks_and_forgotten_after_them() -> None:
    known = jobs()
    known.seen(H[0], [state("met", 0)], H, 5)
    known.seen(H[1], [state("met", 1)], H, 6)
    job = known.get("met")
    assert (job.state, job.hosts, job.rank_hosts()) == ("running", (H[0], H[1]), ())
    known.seen(H[0], [state("met", 0, is_gone=True)], H, 7)
    known.seen(H[1], [state("met", 1, is_gone=True)], H, 8)
    assert known.over(8 + REST_NS - 1) == ()
    assert known.over(8 + REST_NS) == ("met",)
    assert not known.knows("met")


def test_a_cancelled_job_is_heard_of_again_only_as_another_incarnation() -> None:
    known = jobs()
    known.seen(H[0], [state("a", 0, incarnation=5)], H, 0)
    known.cancel("a")
    assert known.is_cancelled("a", 5)
    assert known.get("a").state == "cancelled"
    known.seen(H[0], [state("a", 0, incarnation=6)], H, 0)
    assert not known.is_cancelled("a", 6)
    assert known.get("a").state == "running"


def test_jobs_of_an_earlier_controller_are_known_and_rows_that_are_none_are_left_out(tmp_path: Path) -> None:
    store = opened(tmp_path / "state")
    before = jobs(store)
    before.submit("a", 0, (H[0], H[2]), 2, 0)
    store.job("bad", {"name": "bad", "hosts": [1]})
    store.job("far", {"name": "far", "hosts": ["far"], "ranks_per_host": 1, "is_submitted": True, "reasons": [],
                      "cancelled": None, "incarnation": 0})  # fmt: skip
    store.close()
    after = jobs(opened(tmp_path / "state"))
    after.remember(9)
    assert [job.name for job in after.known()] == ["a"]
    assert after.get("a").rank_hosts() == (H[0], H[0], H[2], H[2])


def test_a_rank_belongs_to_the_host_that_has_it_until_that_host_lets_go() -> None:
    known = jobs()
    (kept, contested) = known.seen(H[0], [state("met", 0)], H, 0)
    assert (len(kept), contested) == (1, [])
    for lie in (state("met", 0), state("met", 0, is_gone=True), state("met", 1, incarnation=2)):
        assert known.seen(H[1], [lie], H, 0) == ([], ["met"])
    assert known.get("met").ranks == {0: H[0]}
    known.seen(H[0], [state("met", 0, is_gone=True)], H, 1)
    assert known.seen(H[1], [state("met", 0, incarnation=2)], H, 2)[1] == []
    assert known.get("met").ranks == {0: H[1]}
    moved = [state("met", 0, incarnation=3)]
    assert known.seen(H[0], moved, {H[0]}, 3) == (moved, []), "its former host is away"


def test_a_submitted_job_lives_where_it_was_placed() -> None:
    known = jobs()
    known.submit("a", 0, (H[0], H[1]), 1, 0)
    assert known.seen(H[2], [state("a", 0)], H, 0) == ([], ["a"])
    assert known.seen(H[0], [state("a", 0)], H, 0)[1] == []
    assert known.seen(H[1], [state("a", 0)], H, 0) == ([], ["a"]), "rank 0 is the other's"
    assert known.seen(H[1], [state("a", 1, incarnation=2)], H, 0)[1] == [], "it began anew"
    known.cancel("a")
    assert known.seen(H[1], [state("a", 1, incarnation=2, is_gone=True)], H, 0)[1] == []
    assert known.seen(H[2], [state("a", 0, incarnation=3)], H, 0)[1] == []


def test_one_host_has_no_more_ranks_than_its_bound() -> None:
    known = jobs()
    kept, contested = known.seen(H[0], [state(f"j{n}", 0) for n in range(MOST_RANKS_PER_HOST + 5)], H, 0)
    assert (len(kept), contested) == (MOST_RANKS_PER_HOST, [])
    assert known.seen(H[1], [state("other", 0)], H, 0)[0] != []
    known.seen(H[0], [state("j0", 0, is_gone=True)], H, 0)
    assert known.seen(H[0], [state("more", 0)], H, 0)[0] != []
    known.quarantined(H[0], 0)
    assert not known.get("j5").ranks


def test_a_proof_is_of_one_term_by_one_controller_with_the_key() -> None:
    proof = SEAL.proof(7)
    assert SEAL.issuer_of(7, proof) == SEAL.issuer
    assert TermSeal(b"a controller's secret key").issuer_of(7, proof) == SEAL.issuer, "its successor knows it"
    assert not SEAL.is_proven(8, proof)
    assert not TermSeal(b"another key").is_proven(7, proof)
    for n, digit in enumerate(proof):
        assert not SEAL.is_proven(7, f"{proof[:n]}{'1' if digit == '0' else '0'}{proof[n + 1 :]}")
    for broken in ("", proof[:-1], proof + "0", proof.upper(), "é" * 48):
        assert not SEAL.is_proven(7, broken) or broken == proof


def test_a_host_in_quarantine_stays_there_over_a_restart(tmp_path: Path) -> None:
    store = opened(tmp_path / "state")
    trust = Trust(SEAL, store)
    trust.quarantine("h1", TERM_NOT_ISSUED, "why")
    trust.quarantine("h2", BY_OPERATOR, "why")
    trust.release("h2")
    store.close()
    again = Trust(SEAL, opened(tmp_path / "state"))
    again.remember()
    assert again.quarantined == {"h1": Quarantine(TERM_NOT_ISSUED, "why")}
    with pytest.raises(JobRefused, match="not_quarantined"):
        again.release("h2")


def epoch(number: int, tree: str = "") -> EpochRecord:
    return EpochRecord("a", 1, 1, number, Grant(tree, ("x",), "t") if tree else None)


def applied(number: int) -> tuple[RankState, ...]:
    return (RankState("a", 1, 0, 1, 1 << 32 | number, 1 << 32 | number),)


def test_a_migration_is_counted_once_with_the_time_between_two_trees() -> None:
    tracking = Tracking()
    assert tracking.published(epoch(1, "t1"), 10)
    assert not tracking.published(epoch(1, "t1"), 11), "to the next of its hosts"
    assert tracking.moved("a", applied(1), 12) is None
    tracking.published(epoch(2), 20)
    tracking.published(epoch(3, "t2"), 30)
    assert tracking.moved("a", applied(2), 35) is None
    assert tracking.moved("a", applied(3), 45) == 25
    assert tracking.moved("a", applied(3), 46) is None
    assert list(tracking.downtime_ns) == [25]


def test_a_tree_that_is_given_back_and_got_again_is_no_migration() -> None:
    tracking = Tracking()
    for number, tree in ((1, "t1"), (2, ""), (3, "t1")):
        tracking.published(epoch(number, tree), number)
    assert tracking.moved("a", applied(3), 9) is None
    assert not tracking.downtime_ns


# -- two controllers on one file --------------------------------------------------------------------------------------
FILES, WRITES = 30, 20


def _write_beside_another(folder: str, number: int, at_once: Any, said: Any) -> None:
    """Per file: open it when the other process does, then write as a controller does, with terms of its own."""
    logging.disable(logging.CRITICAL)
    faults = set()
    for file in range(FILES):
        at_once.wait(60)
        store = opened(Path(folder) / f"state{file}")
        for n in range(WRITES):
            term = 10 * n + number
            store.term(term, SEAL.proof(term))
            store.ledger({f"s{place} a {n}": {"job": "a", "by": number} for place in range(10)})
        faults |= {store.remade, store.lost}
        store.close()
    said.put((number, faults))


def test_two_controllers_on_one_state_file_neither_move_it_aside_nor_lose_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both make it, both write the ledger: each write is whole. A lock held for long may stop one, as documented."""
    monkeypatch.syspath_prepend(str(ROOT))  # for the processes: they import this module by its name
    spawn = multiprocessing.get_context("spawn")
    at_once, said = spawn.Barrier(2), spawn.Queue()
    both = [
        spawn.Process(target=_write_beside_another, args=(str(tmp_path), number, at_once, said)) for number in (1, 2)
    ]
    for process in both:
        process.start()
    found = dict(said.get(timeout=120) for _ in both)
    for process in both:
        process.join(60)
    assert found[1] | found[2] <= {"", "database is locked"}
    assert not list(tmp_path.glob(f"*{ASIDE}"))
    for file in range(FILES):
        kept = opened(tmp_path / f"state{file}").kept
        assert len({entry["by"] for entry in kept.ledger}) == 1, "one controller's, whole"
        assert len(kept.ledger) == 10


def test_a_controller_that_is_about_to_end_does_not_lower_the_term_of_the_next(tmp_path: Path) -> None:
    first, second = opened(tmp_path / "state"), opened(tmp_path / "state")
    first.term(5, SEAL.proof(5))
    second.term(9, SEAL.proof(9))
    first.term(6, SEAL.proof(6))
    assert (first.lost, second.lost) == ("", "")
    assert opened(tmp_path / "state").kept.term == 9
