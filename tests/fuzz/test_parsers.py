"""Every parser of outside bytes, searched (threats A6, A7): typed errors only, bounded work, and what is accepted is
what was sent. `tests.fuzz.engine` judges each input; here are the counts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from offpath.bindings.wire import control, fields, negotiating

from ..bindings.wire.test_protocol_doc import TABLES
from ..sizes import SIZE, sized
from ..suites import records, sources
from ..suites.recorder import UNIT
from ..support.evidence import keep
from ..support.processes import BOUND_S, quickest
from ..support.sources import ROOT
from .engine import CORPUS, Case, corpus, judge, search
from .growth import MOST_GROWTH, PAUSE_S, TRIES, Measured, growth, least_ns
from .reached import imported, run_by, sources_of
from .target import SLOWNESS, Target
from .targets import targets

INPUTS = sized(quick=2_000, fast=5_000, slow=20_000, full=1_000_000)
AGAIN = 20_000
"""Of a parser whose whole count is known."""
SEED = 20_261_121
NAMES = sorted(path.stem for path in CORPUS.glob("*.jsonl"))


@pytest.fixture(scope="module")
def known() -> Iterator[dict[str, Target]]:
    with targets() as made:
        yield made


def test_every_parser_has_its_kept_cases_five_hundred_in_all(known: dict[str, Target]) -> None:
    assert sorted(known) == NAMES
    kept = {name: corpus(name) for name in NAMES}
    assert sum(map(len, kept.values())) >= 500
    for cases in kept.values():
        assert len({(case.data, case.numbers) for case in cases}) == len(cases)
        assert all(case.origin for case in cases)


@pytest.mark.parametrize("name", NAMES)
def test_every_kept_case_still_comes_to_what_it_came_to(name: str, known: dict[str, Target]) -> None:
    for case in corpus(name):
        assert judge(known[name], case.data, case.numbers)[0] == case.gives, case.line()


@pytest.mark.parametrize("name", NAMES)
def test_the_kept_cases_reach_every_code_of_their_parser(name: str, known: dict[str, Target]) -> None:
    reached = {case.gives for case in corpus(name)} - {"accepted"}
    assert reached == (known[name].codes or {"config"})
    assert any(case.gives == "accepted" for case in corpus(name))


@pytest.mark.parametrize(
    ("error", "elsewhere"),
    [
        ("HeaderError", {"too_many_dims"}),  # raised when packing only
        # Of the channel, before a parser sees the message; of a session's account (bindings/zeromq/test_sessions.py).
        ("HostMessageError", {"descriptors", "session", "credit", "flood", "key", "endless"}),
        ("FrameError", set()),
        ("ControlError", {"too_long", "part"}),  # of texts in parts (bindings/wire/test_parts.py)
        ("InaFrameError", {"out_of_turn"}),  # of a connection's account
        ("PacketError", set()),
    ],
)
def test_every_documented_code_is_some_parsers(error: str, elsewhere: set[str], known: dict[str, Target]) -> None:
    documented = {row["code"] for row in TABLES[f"codes {error}"]}
    held = [target.codes for target in known.values() if [kind.__name__ for kind in target.refuses] == [error]]
    assert documented == set().union(*held) | elsewhere


@pytest.mark.parametrize("name", NAMES)
def test_a_search_finds_nothing_to_report(
    name: str, known: dict[str, Target], capsys: pytest.CaptureFixture[str], record_property: Callable[..., None]
) -> None:
    """In ./scripts/test --full a parser of which the whole count is recorded, and that has not changed since, nor
    anything that it imports, gets the count of a slow run."""
    inputs, of = INPUTS, ""
    if SIZE == "full":
        of = sources_of(name, known[name], corpus(name))
        unit = records.known_unit("fuzz", name, of, "full")
        inputs = AGAIN if unit is not None else INPUTS
    report = search(known[name], inputs, SEED, corpus(name))
    with capsys.disabled():
        keep(f"fuzz-{name}.txt", f"\n{report.line(name)}") if inputs == INPUTS else print(f"\n{report.line(name)}")
    assert sum(report.outcomes.values()) == inputs
    if inputs == INPUTS and of:
        record_property(UNIT, [name, of, report.line(name)])
    assert set(report.outcomes) == (known[name].codes or {"config"}) | {"accepted"}


@pytest.mark.parametrize(
    ("name", "depends", "not_on"),
    [
        ("parse_request", "bindings/offpath/bindings/wire/header.py", "bindings/offpath/bindings/wire/control.py"),
        (
            "control_to_daemon",
            "bindings/offpath/bindings/wire/fields.py",
            "dpu_daemon/offpath/dpu_daemon/config/tables.py",
        ),
        ("gateway_head", "host_helper/offpath/host_helper/gateway/heads.py", "sched/offpath/sched/jobs/book.py"),
        ("config_toml", "dpu_daemon/offpath/dpu_daemon/config/tables.py", "host_helper/offpath/host_helper/worker.py"),
    ],
)
def test_a_count_is_of_the_files_that_a_parser_runs_and_imports(
    name: str, depends: str, not_on: str, known: dict[str, Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = imported(run_by(known[name], corpus(name)))
    assert depends in files
    assert not_on not in files
    before, real = sources_of(name, known[name], corpus(name)), sources.file_digest
    monkeypatch.setattr(sources, "file_digest", lambda path: "other" if str(path).endswith(not_on) else real(path))
    assert sources_of(name, known[name], corpus(name)) == before
    monkeypatch.setattr(sources, "file_digest", lambda path: "other" if str(path).endswith(depends) else real(path))
    assert sources_of(name, known[name], corpus(name)) != before


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("control", "frame"))])
def test_work_grows_with_the_input_and_no_faster(name: str, measuring: subprocess.Popen[str]) -> None:
    """Sixteen times the bytes must not cost much more than sixteen times the time; the longest legal input costs less
    than 10 ms. (One byte a chunk has the caller's own slicing in it, which is linear too.) Work that is quadratic has a
    ratio near 256 in each try; other work on the cores, which shares their caches, raises it in some."""
    assert measuring.stdin is not None
    assert measuring.stdout is not None
    print(name, file=measuring.stdin, flush=True)
    found = [Measured(**each) for each in json.loads(measuring.stdout.readline())]
    assert len(found) >= 3
    for each in found:
        assert each.took_ns < each.bound_ns, each
        assert each.growth < MOST_GROWTH, each


@pytest.fixture(scope="module")
def measuring() -> Iterator[subprocess.Popen[str]]:
    """The process of `growth`."""
    command = [sys.executable, "-m", "tests.fuzz.growth"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        try:
            yield child
        finally:
            child.communicate(timeout=BOUND_S)
    assert child.returncode == 0


def test_work_that_is_quadratic_is_found() -> None:
    skip_if_traced()

    def run(data: bytes, numbers: tuple[int, ...]) -> None:
        for at in range(len(data)):
            sum(data[:at])

    target = Target("planted", run, (), lambda *given: None, lambda *given: None, frozenset())
    ratio = quickest(partial(growth, target, Case(bytes(400)), Case(bytes(6_400))), MOST_GROWTH)
    assert ratio > MOST_GROWTH


def test_the_longest_list_a_welcome_may_hold_is_checked_in_time(known: dict[str, Target]) -> None:
    skip_if_traced()
    kernels = [
        negotiating.KernelInfo(name="k" * 64, kernel_id=n, demand=14, is_emulated=None)
        for n in range(fields.MAX_KERNELS)
    ]
    body = control.encode(negotiating.Kernels(kernels=kernels))
    target = known["control_to_requester"]
    bound_ns = 10_000_000 * SLOWNESS
    assert quickest(partial(least_ns, target, Case(body)), bound_ns, TRIES, PAUSE_S) < bound_ns


def skip_if_traced() -> None:
    if sys.gettrace() is not None:
        pytest.skip("each line costs more while coverage is measured")
