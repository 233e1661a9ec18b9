"""The table of slow suites says what is true: it names tests and files that exist, and each change makes stale what it
can break."""

from __future__ import annotations

import re

import pytest

from ..support.sources import ROOT
from . import hunts, sources, table
from .table import REST, Suite, suites


@pytest.mark.parametrize("suite", suites().values(), ids=lambda suite: suite.name)
def test_a_suite_names_tests_and_sources_that_exist(suite: Suite) -> None:
    assert suite.what
    assert suite.minutes > 0
    assert sources.files(suite.sources)
    for pattern in suite.tests:
        path, _, function = pattern.partition("::")
        if function and "*" not in pattern:
            assert f"def {function}" in (ROOT / path).read_text("utf-8"), pattern


@pytest.mark.parametrize("suite", suites().values(), ids=lambda suite: suite.name)
def test_what_a_suite_promises_is_guarded_by_tests_of_the_fast_tier(suite: Suite) -> None:
    assert suite.guards
    for guard in suite.guards:
        path, _, function = guard.partition("::")
        assert (ROOT / path).exists(), guard
        assert f"def {function}" in (ROOT / path).read_text("utf-8") if function else True, guard
        nodeid = guard if function or path.endswith("/") else f"{path}::test_"
        assert table.in_fast_tier(nodeid), guard


@pytest.mark.parametrize("suite", [each for each in suites().values() if not each.whole], ids=lambda suite: suite.name)
def test_a_suite_whose_slow_size_is_whole_has_no_larger_counts(suite: Suite) -> None:
    """Its tests ask nobody for the size. Read are the files in which no other suite has a test."""

    def files(of: Suite) -> set[str]:
        return {pattern.partition("::")[0].partition("*")[0] for pattern in of.tests}

    others = {each for other in suites().values() if other is not suite for each in files(other)}
    own = [each for each in files(suite) if not each.startswith(tuple(others))]
    for path in [ROOT / each for each in own if (ROOT / each).is_file()]:
        assert not re.search(r"sized\(|\bSIZE\b|mark\.full", path.read_text("utf-8")), path


CHANGES = {
    "bindings/offpath/bindings/verbs/queue.py": {"rdma"},
    "sched/offpath/sched/jobs/book.py": {
        "fast-build", "hostile", "kills-node", "load", "planted-jobs", "planted-node", "properties", "simulation-node",
    },
    "host_helper/offpath/host_helper/worker.py": {"kills-node", "load", "simulation-node"},
    "systemd/offpathd.service": {"node-vm", "packages"},
    "bindings/offpath/bindings/ports.py": {"hostile", "kills-node", "load", "measured"},
    "bindings/offpath/bindings/engines/slurm.py": {"kills-jobs", "slurm"},
    "scripts/offpath/cli/web/serving.py": {"browser"},
    "docs/tutorials/training-job.md": {"tutorials"},
    "docs/glossary.md": set(),
}  # fmt: skip
"""A file, and the suites that a change of it makes stale."""


@pytest.mark.parametrize("path", CHANGES)
def test_a_change_makes_stale_what_it_can_break_and_nothing_else(path: str) -> None:
    assert (ROOT / path).exists()
    stale = {name for name, suite in suites().items() if path in sources.files(suite.sources)}
    assert stale - {REST} == CHANGES[path]


def test_a_planted_bug_is_due_when_the_file_that_it_changes_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    patch = ROOT / "tests/simulation/bugs/05-timer-never-comes-earlier.patch"
    (changed,) = table.changed_by(patch)
    before = hunts.sources_of(patch)
    real = sources.file_digest
    monkeypatch.setattr(sources, "file_digest", lambda path: "other" if str(path).endswith(changed) else real(path))
    assert hunts.sources_of(patch) != before
    monkeypatch.setattr(sources, "file_digest", lambda path: "other" if path.name == "main.py" else real(path))
    assert hunts.sources_of(patch) == before


def test_every_folder_of_planted_bugs_is_hunted_by_a_suite() -> None:
    hunted = {folder for suite in suites().values() for folder in suite.hunts}
    folders = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.patch")}
    assert {folder for folder in folders if not folder.startswith(tuple(hunted))} == set()


def test_a_test_belongs_to_the_first_suite_that_names_it() -> None:
    assert table.suite_of("tests/bindings/engines/test_engines.py::test_a_job_runs[slurm-place2]").name == "slurm"
    assert table.suite_of("tests/bindings/engines/test_engines.py::test_a_job_runs[local]").name == REST
    assert not table.in_fast_tier("tests/load/test_soak.py::test_soak")
    assert table.in_fast_tier("tests/fuzz/test_parsers.py::test_a_search[header]")


def test_no_test_beside_a_real_triton_is_in_the_fast_tier() -> None:
    """It needs nothing beyond README."""
    beside = [f"{path.relative_to(ROOT)}::test_" for path in (ROOT / "tests").rglob("test_*beside_triton.py")]
    assert len(beside) == 4
    assert {nodeid for nodeid in beside if table.suite_of(nodeid).name != "triton"} == set()


def test_the_fast_tier_runs_one_of_those_that_take_turns() -> None:
    suite = suites()["simulate"]
    assert [each for each in suite.rotate if table.in_fast_tier(each)] == list(suite.turn())
    assert len(suite.turn()) == 1


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ("def f(a):\n    return a\n", 'def f(a):\n    """Say."""\n    # why\n    return (a)\n', True),
        ("def f(a):\n    return a\n", "def f(a):\n    return -a\n", False),
        ('x = "# no comment"\n', 'x = "# another"\n', False),
        ('x = f"{a}b"\n', "x = f'{a}' 'b'\n", True),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(before: str, after: str, is_same: bool) -> None:
    assert (sources.code(before.encode()) == sources.code(after.encode())) == is_same


def test_comments_and_layout_of_toml_do_not_count() -> None:
    assert sources.table(b'a = 1 # why\n\nb = "#x"\n') == sources.table(b'a=1\nb="#x"\n')
    assert sources.table(b"a = 1\n") != sources.table(b"a = 2\n")
    assert sources.table(b"no toml") == b"no toml"


def test_each_source_file_is_seen_by_the_walk() -> None:
    seen = set(sources.tree())
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "sched").rglob("*.py")} <= seen
    assert not any(path.startswith((".git/", ".venv/", "out/")) for path in seen)


def test_a_source_that_matches_nothing_is_a_fault() -> None:
    with pytest.raises(ValueError, match="no file matches nowhere"):
        sources.files(["nowhere/*.py"])


def test_marks_that_pytest_must_know_are_those_in_use() -> None:
    used = {
        mark
        for path in (ROOT / "tests").rglob("*.py")
        for mark in re.findall(r"pytest\.mark\.([a-z_]+)", path.read_text("utf-8"))
    }
    builtin = {"parametrize", "skipif", "skip", "usefixtures", "filterwarnings", "asyncio", "xfail"}
    declared = set(re.findall(r'^    "([a-z_]+)[:(]', (ROOT / "pyproject.toml").read_text("utf-8"), re.M))
    assert used - builtin <= declared
