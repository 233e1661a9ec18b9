"""`offpath place`, `offpath trees` and `offpath bench ina`: what they print holds, what they cannot use is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offpath.cli.files.networks import folded
from offpath.sched.placement.checker import fragments, score
from offpath.sched.topology.fattree import fat_tree
from offpath.sched.topology.hostlist import expand

from ..support.command import offpath

CONF = (
    "\n".join(f"SwitchName=s{n} Nodes=n[{4 * n:02}-{4 * n + 3:02}]" for n in range(4))
    + "\nSwitchName=top Switches=s[0-3]\n"
)
JOBS = """
first 6          # two racks
second n[08-11]
third n[12-14]
"""


def test_place_says_which_hosts_and_why_and_what_others_would_choose() -> None:
    done = offpath("place", "fat-tree:8", "--busy", "host-[0-2,64-70],host-100", "--hosts", "10", "--json")
    assert done.code == 0, done.err
    found = done.document
    topology = fat_tree(8)
    busy = {0, 1, 2, *range(64, 71), 100}
    free = set(range(128)) - busy
    hosts = [topology.host_numbers[name] for name in found["chosen"]]
    assert len(hosts) == 10
    assert busy.isdisjoint(hosts)
    ours = found["policies"]["fragments"]
    assert ours["score"] == score(topology, free, hosts, 0.5)
    assert ours["fragments"] == fragments(topology, hosts)
    assert all(ours["score"] <= each["score"] for each in found["policies"].values())
    assert set(found["policies"]) == {"fragments", "first-n", "best-fit", "random"}
    assert "fragments of the job's hosts" in found["reasons"][0]


def test_place_for_people_and_in_a_picture(tmp_path: Path) -> None:
    (tmp_path / "topology.conf").write_text(CONF)
    picture = tmp_path / "new" / "hosts.svg"
    done = offpath("place", "topology.conf", "--busy", "n01", "--hosts", "4", "--picture", str(picture), cwd=tmp_path)
    assert done.code == 0, done.err
    assert "n[04-07]" in done.out
    assert "→ fragments" in done.out
    assert "<svg" in picture.read_text("utf-8")


def test_a_job_that_does_not_fit_now_is_exit_code_1_with_the_reason() -> None:
    done = offpath("place", "tree:4x4", "--busy", "50%", "--hosts", "9")
    assert (done.code, done.out) == (1, "not now: 9 hosts wanted, 8 are free\n")


def test_trees_says_who_aggregates_where_and_who_shares(tmp_path: Path) -> None:
    (tmp_path / "topology.conf").write_text(CONF)
    (tmp_path / "jobs").write_text(JOBS + "fourth n[15],n[07]\n")
    words = ("trees", "topology.conf", "--jobs", "jobs", "--per", "switch", "--picture", "trees.svg")
    done = offpath(*words, "--json", "--exact", cwd=tmp_path)
    assert done.code == 0, done.err
    found = done.document
    by_job = {row["job"]: row for row in found["jobs"]}
    assert by_job["first"]["switches"] == ["s0", "s1", "top"]
    assert by_job["second"]["switches"] == ["s2"]
    assert by_job["fourth"]["category"] in (1, 2, 3)
    assert found["exact"]["status"] == "optimal"
    assert found["categories"]["1"] == found["exact"]["bound"] == 3
    assert sorted(job for group in found["groups"] for job in group) == sorted(
        name for name, row in by_job.items() if row["category"] in (1, 2)
    )
    assert "<svg" in (tmp_path / "trees.svg").read_text("utf-8")
    text = offpath(*words, cwd=tmp_path).out
    assert "(C = 1 per switch, k = 5)" in text
    assert "first" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("place", "none.conf", "--hosts", "1"), "none.conf: No such file"),
        (("place", "bad.conf", "--hosts", "1"), "bad.conf:2: switch 'x', below 'b', is not declared"),
        (("place", "bytes.conf", "--hosts", "1"), "not UTF-8"),
        (("place", "fat-tree:7", "--hosts", "1"), "even number"),
        (("place", "good.conf", "--hosts", "0"), "--hosts 0: 1 or more"),
        (("place", "good.conf", "--hosts", "1", "--busy", "n[1-"), "--busy: 'n[1-': brackets"),
        (
            ("place", "good.conf", "--hosts", "1", "--busy", "m1"),
            "no host 'm1' in the topology, which has n00, n01, n02",
        ),
        (("place", "good.conf", "--hosts", "1", "--busy", "120%"), "from 0% to 100%"),
        (("place", "good.conf", "--hosts", "1", "--picture", "x.nothing"), "--picture x.nothing"),
        (("trees", "good.conf", "--jobs", "good.conf"), "good.conf:1: no host 'Nodes=n00'"),
        (("trees", "good.conf", "--jobs", "twice"), "twice:2: a host of b is another job's"),
        (("trees", "good.conf", "--jobs", "large"), "large:1: 99 hosts wanted, 16 are free"),
        (("trees", "good.conf", "--jobs", "empty"), "empty: contains no job"),
        (("trees", "good.conf", "--jobs", "words"), "words:1: NAME HOSTLIST or NAME N"),
        (("trees", "good.conf", "--jobs", "one", "-k", "0"), "-k 0: 1 or more"),
        (("trees", "good.conf", "--jobs", "one", "--capacity", "0"), "--capacity 0: 1 or more"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_line(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    for name, text in (
        ("good.conf", CONF), ("bad.conf", "SwitchName=a Nodes=n1\nSwitchName=b Switches=x"), ("large", "a 99"),
        ("twice", "a n[00-03]\nb n03"), ("empty", "# nothing"), ("words", "a b c"), ("one", "a 2"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
    (tmp_path / "bytes.conf").write_bytes(b"SwitchName=\xff")
    done = offpath(*words, cwd=tmp_path)
    assert done.code == 1
    assert said in done.err


@pytest.mark.parametrize(
    "names", [["n08", "n09", "n10"], ["a1", "a2", "b3"], ["x"], ["n9", "n10", "n11"], ["n099", "n100", "n0101"]]
)
def test_folded_names_unfold(names: list[str]) -> None:
    assert expand(folded(names)) == names


def test_bench_ina_measures_placement_growth_trees_and_the_simulator(tmp_path: Path) -> None:
    """What does not depend on time; the bars are the command's own business."""
    done = offpath("bench", "ina", "--quick", "--json", "--plot", str(tmp_path / "ina.svg"), timeout=280)
    assert done.code in (0, 1), done.err
    found = json.loads(done.out)
    assert [row["hosts"] for row in found["placement"]] == [1024, 16384]
    assert all(row["fragments"]["p50_us"] > 0 < row["first-n"]["p50_us"] for row in found["placement"])
    assert {(row["hosts"], row["wanted"]) for row in found["growth"]} >= {(1024, 64), (16384, 256)}
    assert {(row["jobs"], row["limit"]) for row in found["trees"]} == {
        (n, each) for n in (100, 300) for each in ("hdr", "ndr")
    }
    for row in found["trees"]:
        assert row["served"] <= row["bound"]
        assert row["exact"] in ("optimal", "feasible", "unknown")
    assert (tmp_path / "ina.svg").exists()
    assert {(row["what"], row["per_s"] > 0) for row in found["simulator"]} == {("cluster", True), ("contended", True)}
    assert all(0 < row["planning"] < 1 for row in found["simulator"] if row["what"] == "cluster")
    assert {(bar["bound"], bar["kind"]) for bar in found["bars"]} == {(1.0, "max"), (200_000, "min")}
