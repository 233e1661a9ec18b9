"""The engine against a slow oracle, compiled against plain, whole steps at once against operation by operation."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from offpath.sched.ina import engine as engines
from offpath.sched.ina import engine_kernel as kernel
from offpath.sched.ina.decision import Epoch, decision
from offpath.sched.ina.engine import RULES, Engine, EngineError, Rule, can_compile
from offpath.sched.ina.patterns import Timed
from offpath.sched.ina.tuning import VALUES

from ...sizes import sized
from .training import Class, drawn

WORLDS = sized(quick=40, fast=62, slow=250, full=5_000)
COMPILED = [False, pytest.param(True, marks=pytest.mark.skipif(not can_compile(), reason="numba is not installed"))]
FAR = 1 << 40


def world(random: Random) -> tuple[list[Timed], list[int]]:
    kinds = [drawn(random) for _ in range(random.randint(1, 4))]
    return kinds, [random.randint(1, 6) for _ in kinds]


def met(random: Random, jobs: int) -> dict[int, list[int]]:
    """Whose trees meet, drawn: those of some pairs."""
    pairs = {(one, other) for one in range(jobs) for other in range(one) if random.random() < 0.6}
    return {job: [other for other in range(jobs) if {(job, other), (other, job)} & pairs] for job in range(jobs)}


def shared(
    kinds: list[Timed], steps: list[int], rule: Rule, meets: dict[int, list[int]] | None = None, **more: Any
) -> Engine:
    engine = Engine(kinds, len(kinds), rule, **more)
    for job, count in enumerate(steps):
        engine.add(job, job, count)
    others = {job: [other for other in range(len(kinds)) if other != job] for job in range(len(kinds))}
    engine.share([], [], [list(range(len(steps)))], meets or others)
    return engine


def ends(engine: Engine, jobs: int) -> Iterator[tuple[int, int, int, int]]:
    """(job, end, time in INA, operations with it) of all jobs, as they end."""
    left = jobs
    while left:
        for job in engine.run(FAR):
            progress = engine.progress(job)
            yield job, engine.now_ns, progress.ina_ns, progress.with_ina
            left -= 1


def disagreements(count: int, *, compiled: bool = False) -> list[str]:
    """Random worlds, under each rule, in which the engine ends a job at another moment than the oracle."""
    found = []
    for seed in range(count):
        random = Random(f"world {seed}")
        kinds, steps = world(random)
        meets = met(random, len(kinds))
        for name, rule in RULES.items():
            oracle = Class(list(zip(kinds, steps, strict=True)), name, meets=meets)
            oracle.run(FAR)
            expected = {job: (each.ended, each.ina_ns) for job, each in enumerate(oracle.jobs)}
            engine = shared(kinds, steps, rule, meets, compiled=compiled)
            if {job: (end, ina) for job, end, ina, _ in ends(engine, len(kinds))} != expected:
                found.append(f"{seed} {name}")
    return found


@pytest.mark.parametrize("compiled", COMPILED)
def test_a_group_goes_as_the_oracle_says(compiled: bool) -> None:
    assert disagreements(WORLDS, compiled=compiled) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("if taken >= capacity:\n", "if taken > capacity:\n"),
        ("(1 if jobs[other + MODE] == WAITS else 0)", "0"),
        ("if begins >= end or", "if begins > end + 3 or"),
        ("end = max(end, jobs[s + ORIGIN] + kinds[k + 2])", "end = jobs[s + ORIGIN] + kinds[k + 2]"),
        ("> mine_rate", ">= mine_rate"),
        ("elif jobs[other + LEFT] == 1:", "elif jobs[other + LEFT] == 0:"),
    ],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, right: str, wrong: str) -> None:
    text = inspect.getsource(kernel)
    assert text.count(right) >= 1
    broken: dict[str, Any] = {"__name__": "broken"}
    exec(text.replace(right, wrong), broken)
    monkeypatch.setattr(engines, "kernels", lambda compiled: broken["build"](lambda function: function))
    assert disagreements(40)


def slower(kind: Timed, by: int) -> Timed:
    """Others are on its links: what is not aggregated in the network takes longer."""
    return Timed(kind.name, kind.starts, tuple(by * each for each in kind.plain), kind.ina, kind.duration_ns)


@pytest.mark.parametrize("compiled", COMPILED)
def test_a_change_of_pace_in_the_middle_of_a_step_goes_as_the_oracle_says(compiled: bool) -> None:
    for seed in range(WORLDS):
        random = Random(f"pace {seed}")
        kinds, steps = world(random)
        both = [*kinds, *(slower(kind, 3) for kind in kinds)]
        name = random.choice(list(RULES))
        oracle = Class(list(zip(kinds, steps, strict=True)), name)
        engine = Engine(both, len(kinds), RULES[name], compiled=compiled)
        for job, count in enumerate(steps):
            engine.add(job, job, count)
        group = list(range(len(kinds)))
        others = {job: [other for other in group if other != job] for job in group}
        engine.share([], [], [group], others)
        ended: dict[int, int] = {}
        for at in sorted(random.randrange(1, 200) for _ in range(4)):
            while len(ended) < len(kinds) and (over := engine.run(at)):
                ended |= dict.fromkeys(over, engine.now_ns)
            oracle.run(at)
            for job in group:
                if job not in ended and random.random() < 0.7:
                    kind = random.choice((job, job + len(kinds)))
                    engine.change(job, kind)
                    oracle.jobs[job].pattern = both[kind]
            engine.share([], [], [group], others)
        while len(ended) < len(kinds):
            ended |= dict.fromkeys(engine.run(FAR), engine.now_ns)
        oracle.run(FAR)
        assert ended == {job: each.ended for job, each in enumerate(oracle.jobs)}, (seed, name)


def test_a_kind_with_other_operations_is_no_change_of_pace() -> None:
    engine = Engine([Timed("one", (0,), (5,), (3,), 9), Timed("two", (0, 4), (5, 5), (3, 3), 9)], 1, RULES["greedy"])
    engine.add(0, 0, 3)
    with pytest.raises(EngineError, match="2 operations, not 1"):
        engine.change(0, 1)


def test_the_kernel_asks_for_ina_exactly_where_the_plan_does() -> None:
    """Operation by operation: `decision` is told what is known of the step so far, nothing else."""
    asked = 0
    for seed in range(WORLDS):
        random = Random(f"asks {seed}")
        kinds = [drawn(random) for _ in range(random.randint(2, 3))]
        rule = Rule("plan, C drawn", capacity=random.randint(1, 3), filters=True)
        trust = [random.choice(VALUES) for _ in kinds]
        engine = shared(kinds, [random.randint(1, 4) for _ in kinds], rule, compiled=False, trusts=trust)
        begun: dict[int, tuple[int, int]] = {}
        verdicts: dict[int, list[bool]] = {job: [] for job in range(len(kinds))}
        refused = dict.fromkeys(verdicts, 0)
        over: set[int] = set()
        now = 0
        while len(over) < len(kinds):
            over.update(engine.run(now))
            if engine.now_ns < now:
                continue
            for job in verdicts:
                seen = engine.progress(job)
                if seen.mode not in (kernel.PLAIN, kernel.INA) or begun.get(job) == (seen.step_began_ns, seen.at_ns):
                    continue
                if begun.get(job, (-1, 0))[0] != seen.step_began_ns:
                    verdicts[job] = []
                begun[job] = seen.step_began_ns, seen.at_ns
                wants = decision(Epoch(1, kinds[job], trust=trust[job]), len(verdicts[job]), verdicts[job]).wants_ina
                assert wants == (seen.mode == kernel.INA or seen.refused > refused[job])
                refused[job] = seen.refused
                verdicts[job].append(seen.mode == kernel.INA)
                asked += wants
            now += 1
    assert asked > 2 * WORLDS


def test_the_oracle_and_the_engine_hold_the_capacity_at_every_instant() -> None:
    for seed in range(WORLDS // 5):
        random = Random(f"capacity {seed}")
        kinds, steps = world(random)
        capacity = random.randint(1, 2)
        rule = Rule("c", capacity=capacity, looks_ahead=random.random() < 0.5)
        engine = shared(kinds, steps, rule, compiled=False)
        oracle = Class(list(zip(kinds, steps, strict=True)), "mina-paper" if rule.looks_ahead else "greedy")
        oracle.capacity = capacity
        over: set[int] = set()
        now = 0
        while len(over) < len(kinds):
            over.update(engine.run(now))
            if engine.now_ns == now:
                in_use = sum(engine.progress(job).mode == kernel.INA for job in range(len(kinds)))
                assert in_use <= capacity
                oracle.run(now)
                assert in_use == sum(job.doing == "ina" for job in oracle.jobs)
                now += 1
        assert oracle.most_at_once <= capacity


@pytest.mark.parametrize("compiled", COMPILED)
def test_whole_steps_at_once_are_operations_one_by_one(compiled: bool) -> None:
    """Jobs come, get trees, share and lose them at random moments; nothing depends on how time was skipped."""
    for seed in range(WORLDS // 5):
        told = [story(seed, compiled=compiled, fast_forward=each) for each in (True, False)]
        assert told[0] == told[1]


@pytest.mark.skipif(not can_compile(), reason="numba is not installed")
def test_compiled_and_plain_tell_one_story() -> None:
    for seed in range(WORLDS // 5):
        assert story(seed, compiled=True, fast_forward=True) == story(seed, compiled=False, fast_forward=True)


def story(seed: int, **how: bool) -> list[tuple[int, ...]]:
    random = Random(f"story {seed}")
    kinds = [drawn(random) for _ in range(3)]
    kinds += [slower(kind, 2) for kind in kinds]
    count = 6
    rule = random.choice(list(RULES.values()))
    engine = Engine(kinds, count, rule, **how)
    told: list[tuple[int, ...]] = []
    running: list[int] = []
    pace: dict[int, int] = {}
    waiting = list(range(count))
    while running or waiting:
        if waiting and (not running or random.random() < 0.4):
            pace[waiting[0]] = random.randrange(6)
            engine.add(waiting[0], pace[waiting[0]], random.randint(1, 30))
            running.append(waiting.pop(0))
        place = {job: random.choice(["alone", "none", "a", "a", "b"]) for job in running}
        groups = [[job for job in running if place[job] == name] for name in "ab"]
        if random.random() < 0.3:
            engine.block(random.choice(running), engine.now_ns + random.randrange(60))
        changed = random.choice(running)
        pace[changed] = random.choice((pace[changed] % 3, pace[changed] % 3 + 3))
        engine.change(changed, pace[changed])
        engine.share(
            [job for job in running if place[job] == "alone"],
            [job for job in running if place[job] == "none"],
            [group for group in groups if group],
            {job: [other for other in group if other != job] for group in groups for job in group},
        )
        for job in engine.run(engine.now_ns + random.randrange(1, 300)):
            progress = engine.progress(job)
            told.append((engine.now_ns, job, progress.ina_ns, progress.with_ina, progress.refused))
            running.remove(job)
    return told


def test_one_alone_takes_the_time_of_its_steps() -> None:
    kind = drawn(Random("alone"))
    for trees, step in (([0], kind.all_ns), ([], kind.none_ns)):
        engine = Engine([kind], 1, RULES["mina-paper"], compiled=False)
        engine.add(0, 0, 1_000_000)
        engine.share(trees, [0] if not trees else [], [], {})
        assert engine.run(FAR) == [0]
        assert engine.now_ns == 1_000_000 * step


def test_everything_twice_as_slow_takes_twice_as_long() -> None:
    for seed in range(WORLDS // 5):
        kinds, steps = world(Random(f"twice {seed}"))
        slow = [
            Timed(
                each.name, tuple(2 * n for n in each.starts), tuple(2 * n for n in each.plain),
                tuple(2 * n for n in each.ina), 2 * each.duration_ns,
            )
            for each in kinds
        ]  # fmt: skip
        for rule in RULES.values():
            one = sorted(ends(shared(kinds, steps, rule, compiled=False), len(kinds)))
            two = sorted(ends(shared(slow, steps, rule, compiled=False), len(kinds)))
            assert two == [(job, 2 * end, 2 * ina, count) for job, end, ina, count in one]


def test_what_nobody_can_simulate_is_refused() -> None:
    engine = Engine([drawn(Random(1)), Timed("empty", (), (), (), 5)], 2, RULES["greedy"], compiled=False)
    with pytest.raises(EngineError, match="0 steps"):
        engine.add(0, 0, 0)
    with pytest.raises(EngineError, match="0 operations"):
        engine.add(0, 1, 1)
    with pytest.raises(EngineError, match="steps of"):
        engine.add(0, 0, 1 << 57)
