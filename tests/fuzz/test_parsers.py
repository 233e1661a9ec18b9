"""Every parser of outside bytes, searched (threats A6, A7): typed errors only, bounded work, and what is accepted is
what was sent. `tests.fuzz.engine` judges each input; here are the counts."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from offpath.bindings.wire import control, fields, frames, negotiating

from ..bindings.wire.test_protocol_doc import TABLES
from ..conftest import SIZE
from ..support.evidence import keep
from ..support.processes import quickest
from .engine import CORPUS, Case, corpus, judge, search
from .target import Target
from .targets import targets

INPUTS = {"quick": 2_000, "ci": 20_000, "full": 1_000_000}[SIZE]
SEED = 20_261_121
MOST_GROWTH = 16.0 * 4
"""Of the time, for 16 times the bytes."""
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
    name: str, known: dict[str, Target], capsys: pytest.CaptureFixture[str]
) -> None:
    report = search(known[name], INPUTS, SEED, corpus(name))
    with capsys.disabled():
        keep(f"fuzz-{name}.txt", f"\n{report.line(name)}")
    assert sum(report.outcomes.values()) == INPUTS
    assert set(report.outcomes) == (known[name].codes or {"config"}) | {"accepted"}


def longest(name: str) -> Iterator[Callable[[int], Case]]:
    """Ways to fill ``n`` bytes of a parser that takes long input, each made to cost as much as it can."""
    if name == "frame_reader":
        yield lambda n: Case(b"\1\0\0\0x" * (n // 5))
        yield lambda n: Case(b"\1\0\0\0x" * (n // 5), (1,) * n)
        yield lambda n: Case((n - 4).to_bytes(4, "little") + bytes(n - 4), (1,) * n)
        return
    for body in (b"[", b'{"a":', b'"\\u0000', b"1", b'{"kind":', b"[{},", b" ", b"\xff", b'"', b"\\", b"1e9"):
        yield lambda n, body=body: Case(body * (n // len(body)))
    for start, unit, end in (
        (b'{"kind":"hello",', b'"%x":0,', b'"slots":1}'),
        (b'{"kind":"kernels","kernels":[', b"{},", b"{}]}"),
        (b'{"kind":"kernels","kernels":[{', b'"%x":0,', b'"name":1}]}'),
        (b'{"kind":"host_welcome","generation":1,"kernel_ids":{', b'"%x":[],', b'"a":1}}'),
        (
            b'{"kind":"lane_ready","lease":1,"lane":0,"generation":1,"landing_bytes":1,"export":{',
            b'"%x":[],',
            b'"a":1}}',
        ),
        (b'{"kind":"helper_hello","name":"a","pid":1,"gpu_count":1,"kernels":[', b"{},", b"{}]}"),
        (b'{"kind":"goodbye","token":"', b"t", b'"}'),
        (b'{"kind":"agent_report","term":1,"states":[', b"{},", b"{}]}"),
        (b'{"kind":"new_epoch","epoch":{', b'"%x":[],', b'"a":1}}'),
        (b'{"kind":"job_submit","job":"a","on":[', b'"h",', b'"h"]}'),
        (b'{"kind":"inc_submit","name":"a","tenant":"t","composite":[', b"{},", b"{}]}"),
        (b'{"kind":"inc_submit","name":"a","tenant":"t","composite":[{"demand":{', b'"%x":[],', b'"a":1}}]}'),
        (b'{"kind":"start","identity":"a","features":[', b"{},", b"{}]}"),
        (b'{"kind":"status","counters":{', b'"%x":[],', b'"a":1}}'),
        (b'{"kind":"configure","epoch":1,"stores":[', b"{},", b"{}]}"),
        (b'{"kind":"load","entries":[', b"{},", b"{}]}"),
        (b'{"kind":"entries","entries":[', b"{},", b"{}]}"),
    ):
        yield lambda n, start=start, unit=unit, end=end: filled(start, unit, end, n)


def filled(start: bytes, unit: bytes, end: bytes, most: int) -> Case:
    """As many units as fit, numbered where they want to be."""
    parts, length = [start, end], len(start) + len(end)
    number = 0
    while length < most:
        part = unit % number if b"%" in unit else unit
        parts.insert(-1, part)
        length += len(part)
        number += 1
    return Case(b"".join(parts)[: most + len(unit)])


def least_ns(target: Target, case: Case) -> int:
    """The fastest of several runs: noise only ever adds. Without the garbage collector, whose passes over this
    process's many objects the input's own objects would trigger."""
    if sys.gettrace() is not None:
        pytest.skip("each line costs more while coverage is measured")
    took = []
    gc.disable()
    try:
        for _ in range(7):
            started = time.thread_time_ns()
            with contextlib.suppress(target.refuses):
                target.run(case.data, case.numbers)
            took.append(time.thread_time_ns() - started)
    finally:
        gc.enable()
    return min(took)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("control", "frame"))])
def test_work_grows_with_the_input_and_no_faster(name: str, known: dict[str, Target]) -> None:
    """Sixteen times the bytes must not cost much more than sixteen times the time; the longest legal input costs less
    than 10 ms. (One byte a chunk has the caller's own slicing in it, which is linear too.) Work that is quadratic has a
    ratio near 256 in each try; other work on the cores, which shares their caches, raises it in some."""
    target, most = known[name], frames.MAX_FRAME_BYTES
    for make in longest(name):
        small, large = make(most // 16), make(most)
        long, per_chunk = least_ns(target, large), 1_000 * len(large.numbers)
        assert long < target.slow_ns + per_chunk, (long, large.data[:60])
        ratio = quickest(partial(growth, target, small, large), MOST_GROWTH)
        assert ratio < MOST_GROWTH, (ratio, large.data[:60])


def growth(target: Target, small: Case, large: Case) -> float:
    """The time for ``large`` by that for ``small``, measured one after the other."""
    return least_ns(target, large) / max(least_ns(target, small), 20_000)


def test_work_that_is_quadratic_is_found() -> None:
    def run(data: bytes, numbers: tuple[int, ...]) -> None:
        for at in range(len(data)):
            sum(data[:at])

    target = Target("planted", run, (), lambda *given: None, lambda *given: None, frozenset())
    ratio = quickest(partial(growth, target, Case(bytes(400)), Case(bytes(6_400))), MOST_GROWTH)
    assert ratio > MOST_GROWTH


def test_the_longest_list_a_welcome_may_hold_is_checked_in_time(known: dict[str, Target]) -> None:
    kernels = [
        negotiating.KernelInfo(name="k" * 64, kernel_id=n, demand=14, is_emulated=None)
        for n in range(fields.MAX_KERNELS)
    ]
    body = control.encode(negotiating.Kernels(kernels=kernels))
    assert least_ns(known["control_to_requester"], Case(body)) < 10_000_000
