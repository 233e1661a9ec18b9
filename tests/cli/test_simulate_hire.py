"""`offpath simulate hire`: its rows are complete, its streams have the load that they claim, bad input is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offpath.cli.demo import samples
from offpath.cli.files.traces import TraceError
from offpath.cli.hire.cells import FALLBACK, World, cell, known, quantile, speed
from offpath.cli.hire.traces import PODS_OF_JOB, read
from offpath.cli.hire.workloads import SERVICES_OF_SWITCH, Load, cluster, stream
from offpath.cli.simulate.hire import Options, _pieces
from offpath.cli.simulate.hire_reference import paper_of
from offpath.cli.simulate.hire_rows import beyond, claim_rows, mean_rows, run_rows, speed_rows, tuned
from offpath.sched.errors import SchedError
from offpath.sched.inc.policies import NINE
from offpath.sched.inc.units import SWITCH_CAPACITY
from offpath.sched.sim.inc import alternatives

from ..support.command import offpath

TRACE = str(samples.DATA / "hire_synth_jobs.csv")
COLUMNS = {
    "policy", "mode", "mu", "heterogeneous", "seed", "inc_satisfied", "inc_groups_satisfied", "detours", "load",
    "latency_s", "paper",
}  # fmt: skip
SMALL = World(TRACE, "k8++/concurrent", degree=4, count=24)
HEAD = "job,type,submit,duration,task_group,instances,mem,cpu,connections\n"
POD_HEAD = "name,creation_time_s,run_duration_s,cpu_milli,memory_mib,qos\n"


def run_of(policy: str, **more: Any) -> dict[str, Any]:
    return cell(**{**SMALL.as_arguments(), "policy": policy, **more})


def finished(*some: tuple[str, dict[str, Any]], part: str = "8") -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [
        ({"part": part, "world": {**SMALL.as_arguments(), "policy": policy, **more}}, run_of(policy, **more))
        for policy, more in some
    ]


def test_the_command_prints_rows_with_all_columns_and_the_papers_numbers(tmp_path: Path) -> None:
    words = ("--quick", "--figure", "8a", "--seeds", "1", "--policy", "hire", "--policy", "k8++/concurrent")
    done = offpath("simulate", "hire", *words, "--json", "--out", str(tmp_path), timeout=180)
    assert done.code == 0, done.err
    rows = done.document["runs"]
    assert all(row.keys() >= COLUMNS for row in rows)
    assert {(row["policy"], row["mode"]) for row in rows} == {("hire", None), ("k8++", "concurrent")}
    assert {(row["mu"], row["heterogeneous"]) for row in rows} == {
        (mu, kind) for mu in (0.5, 1.0) for kind in (False, True)
    }
    for row in rows:
        assert 0 <= row["inc_satisfied"] <= 1
        assert set(row["load"]) == {"cpu_milli", "memory_mib", "recirculation", "stages", "sram_kib"}
        assert 0 < row["load"]["cpu_milli"] <= 1
        assert 0 < row["latency_s"]["p50"] <= row["latency_s"]["p90"] <= row["latency_s"]["p99"]
    papers = {(row["policy"], row["mu"], row["heterogeneous"]): row["paper"] for row in rows}
    assert papers["hire", 1.0, False]["inc_satisfied"] == 0.92
    assert papers["k8++", 1.0, True] == {"inc_satisfied": [None, 0.57]}
    assert papers["hire", 0.5, False] is None
    assert done.document["claims"]
    assert sorted(Path(each).name for each in done.document["plots"]) == [
        f"hire-figure-8{letter}.svg" for letter in "abcdefghij"
    ]
    assert "figure 8" in done.err
    assert "SRAM offered" in done.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("hire", "--figure", "9"), 2, "--figure 9"),
        (("hire", "--seeds", "0"), 2, "--seeds 0"),
        (("netpack", "--policy", "hire"), 2, "--policy hire"),
        (("mina", "--trace", "x.csv"), 2, "--trace x.csv"),
        (("hire", "--quick", "--policy", "nope"), 1, "unknown policy 'nope'"),
        (("hire", "--quick", "--trace", "/nowhere.csv"), 1, "/nowhere.csv"),
        (("hire", "--quick", "--only", "pods"), 1, "no --quick"),
        (("hire", "--only", "nothing"), 1, "no part nothing"),
    ],
)
def test_what_it_does_not_have_is_refused(words: tuple[str, ...], code: int, message: str) -> None:
    done = offpath("simulate", *words)
    assert done.code == code
    assert message in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD, "contains no job"),
        ("job,type\nj,DAG\n", "no column"),
        (HEAD + "j,DAG,0,5,1,many,1,50,\n", "instances is 'many'"),
        (HEAD + "j,DAG,0,5,1,-2,1,50,\n", "instances is -2"),
        (HEAD + "j,DAG,0,5,1,99999999,1,50,\n", "instances is"),
        (HEAD + "j,DAG,0,5,1,2,1,50,x\n", "connections are 'x'"),
        (HEAD + "j,DAG,0,5,1,2,1,50,\nj,DAG,0,5,1,2,1,50,\n", "again"),
        (HEAD + "j,DAG,nan,5,1,2,1,50,\n", "submit is"),
        (POD_HEAD + "p,0,1,200000,1,LS\n", "cpu_milli is 200000"),
        (POD_HEAD + "p,0,1,1000,1,LS\n", "fewer than 16 pods"),
    ],
)
def test_an_invalid_trace_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read(str(path))


def test_pods_become_jobs_of_one_class_with_cut_gaps_and_durations(tmp_path: Path) -> None:
    """Two classes; equal pods are a task group. Of gaps 10, 10 and 100 s the mean is 40, so the last is cut at 120."""
    lines = []
    for job, at_s in enumerate((0, 10, 20, 120)):
        for n in range(PODS_OF_JOB):
            lines.append(f"p,{at_s},{7_200 if n else 60},{1_000 if n < 4 else 2_000},1024,{'LS' if job % 2 else 'BE'}")
    path = tmp_path / "pods.csv"
    path.write_text(POD_HEAD + "\n".join(lines) + "\n")
    trace = read(str(path))
    assert trace.kind == "pods"
    assert [(row.at_s, row.is_service) for row in trace.rows] == [(0, False), (10, True), (20, False), (120, True)]
    first = trace.rows[0]
    assert [(each.tasks, each.cpu_milli, each.lasts_s) for each in first.groups] == [(4, 1_000, 60), (12, 2_000, 60)]
    assert first.groups[0].next == (1,)


def test_a_stream_has_the_load_that_it_claims() -> None:
    """By hand from the definition: SRAM and CPU in use, over the span of the arrivals."""
    trace = read(TRACE)
    topology, servers, switches = cluster(8, trace.server, False, 0)
    found = stream(trace, topology, 0, 300, 1.0, Load(1.2, 0.7))
    assert [each.at_ms for each in found.jobs] == sorted(each.at_ms for each in found.jobs)
    assert found.jobs[-1].at_ms == pytest.approx(found.span_ms, abs=2)
    sram = sum(group.demand[2] * group.tasks * found.lasts_ms[group.id[0]]
               for job in found.jobs for group in job.request.groups if group.is_inc)  # fmt: skip
    assert sram / (len(switches) * SWITCH_CAPACITY[2] * found.span_ms) == pytest.approx(1.2, rel=0.01)
    cpu = sum(group.demand[0] * group.tasks * job.lasts_ms[group.id] for job in found.jobs
              for group in job.request.groups if group.implementation == "server")  # fmt: skip
    assert cpu / (len(servers) * trace.server[0] * found.span_ms) == pytest.approx(0.7, rel=0.05)


def test_the_jobs_of_a_smaller_mu_are_a_part_of_those_of_a_greater() -> None:
    trace = read(TRACE)
    topology, _, switches = cluster(4, trace.server, True, 1)
    assert all(len(each.services or ()) == SERVICES_OF_SWITCH for each in switches)
    wanting = {}
    for mu in (0.05, 0.5, 1.0):
        jobs = stream(trace, topology, 1, 60, mu).jobs
        wanting[mu] = {each.request.job for each in jobs if alternatives(each.request)}
        assert len(wanting[mu]) == round(60 * mu)
    assert wanting[0.05] < wanting[0.5] < wanting[1.0]


def test_results_of_older_rules_are_run_again_for_hires_policies_only() -> None:
    """Pieces of baselines that were finished before HIRE's readings changed stay valid."""
    options = Options(TRACE, None, range(1), quick=True, policies=("hire", "hire-paper", "yarn++/concurrent", "hirex"))
    keys = {words["world"]["policy"]: key for key, words in _pieces(options, "8", [SMALL], ())}
    assert {name: key.rpartition(" rules ")[2] for name, key in keys.items()} == {
        "hire": "3", "hire-paper": "3", "yarn++/concurrent": "1", "hirex": "1",
    }  # fmt: skip
    assert keys["yarn++/concurrent"] == f"cell {TRACE} yarn++/concurrent 1.0 False 0 4 24 1.2 None rules 1"


def test_a_seed_gives_the_same_run_again_and_another_seed_other_jobs() -> None:
    assert run_of("hire") == run_of("hire")
    assert run_of("hire")["latency_s"] != run_of("hire", seed=1)["latency_s"]


@pytest.mark.parametrize("policy", NINE)
def test_every_policy_of_the_nine_runs_and_serves_somebody(policy: str) -> None:
    found = run_of(policy, mu=0.5)
    assert found["refused"] == 0
    assert found["placed"] > 0.5
    assert found["inc_jobs"] > 0


def test_an_idle_cluster_serves_everybody_and_a_crowded_one_does_not() -> None:
    idle, crowded = (run_of("k8++/concurrent", load=load, count=40) for load in (0.1, 4.0))
    assert idle["inc_satisfied"] == 1.0
    assert crowded["inc_satisfied"] < 1.0
    assert idle["load"]["sram_kib"] < crowded["load"]["sram_kib"]


def test_a_shorter_timeout_lets_jobs_wait_less() -> None:
    short, long = (run_of("coco++", load=3.0, fallback=part, count=40) for part in (0.01, 0.5))
    assert short["latency_s"]["p99"] < long["latency_s"]["p99"]


def test_rows_compare_with_the_paper_and_with_the_printed_reading() -> None:
    some = finished(*((name, {}) for name in ("hire", "hire-one-flavor", "hire-paper", "k8++/concurrent")))
    rows = run_rows(some)
    means = mean_rows(rows)
    by_name = {row["name"]: row for row in means}
    assert by_name["hire"]["inc_satisfied"] == rows[0]["inc_satisfied"]
    assert by_name["hire"]["inc_satisfied_sd"] == 0
    claims = {row["claim"]: row for row in claim_rows(means)}
    ahead = claims["μ = 1: satisfied jobs ahead of the best baseline"]
    difference = by_name["hire"]["inc_satisfied"] - by_name["k8++/concurrent"]["inc_satisfied"]
    assert ahead["offpath"] == pytest.approx(difference, abs=1e-4)
    assert ahead["met"] == (difference >= 0.23)
    (row,) = beyond(rows, "hire")
    assert row["inc_satisfied_paper"] == by_name["hire-paper"]["inc_satisfied"]
    assert row["met"] == (row["inc_satisfied"] > row["inc_satisfied_paper"] and row["detours"] < row["detours_paper"])
    tuning = tuned(mean_rows(run_rows(finished(("coco++", {"fallback": 0.2}), part="tuning"))))
    assert [(each["name"], each["fallback"]) for each in tuning] == [("coco++", 0.2)]
    assert tuning[0]["chosen"] == (FALLBACK["coco++"] == 0.2)
    json.dumps([rows, means, list(claims.values()), row])


def test_figure_7_counts_the_networks_and_measures_only_while_it_runs() -> None:
    found = speed(**{**SMALL.as_arguments(), "policy": "hire", "count": 8})
    assert len(found["solve_ms"]) > found["rounds"], "several networks in a round"
    one = speed(**{**SMALL.as_arguments(), "policy": "hire-paper", "count": 8})
    assert len(one["solve_ms"]) == one["rounds"]
    assert found["solve_ms"] == sorted(found["solve_ms"])
    (row,) = speed_rows([({"world": {"mu": 1.0}}, {"solve_ms": [1.0, 2.0, 9.0]})])
    assert row == {"mu": 1.0, "networks": 3, "p50_ms": 2.0, "p99_ms": 2.0}


def test_small_parts() -> None:
    assert quantile([1_000, 2_000, 3_000, 4_000], 0.5) == 2.0
    assert quantile([1_000, 2_000, 3_000, 4_000], 0.99) == 4.0
    assert quantile([], 0.5) is None
    assert paper_of("hire-one-flavor", 1.0, False) == {"inc_satisfied": [0.81, None]}
    assert paper_of("hire", 0.05, False) is None
    with pytest.raises(SchedError):
        known("nobody")
