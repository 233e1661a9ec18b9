"""The search: mutate what is kept, judge what comes of it, keep what reached something new.

An input is judged by its outcome's signature (the error's code and the line that raised it, or the shape of what was
accepted). A new signature joins the pool that is mutated further; that is all the guidance there is, and it costs
nothing on the way.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

from .mutate import Numbers
from .target import Target

CORPUS = Path(__file__).resolve().parent / "corpus"
_AGAIN = 3


class Finding(AssertionError):
    """An input that broke a rule; the message is what a line of the corpus needs."""


@dataclass(frozen=True)
class Case:
    """An input, and where it came from."""

    data: bytes
    numbers: Numbers = ()
    origin: str = ""
    gives: str = ""

    def line(self) -> str:
        """As a line of a corpus file: text where it is readable, else hexadecimal."""
        shown: dict[str, Any] = {"text": self.data.decode()} if is_plain(self.data) else {"hex": self.data.hex()}
        if self.numbers:
            shown["n"] = list(self.numbers)
        return json.dumps({**shown, "gives": self.gives, "from": self.origin}, ensure_ascii=True)


def is_plain(data: bytes) -> bool:
    return all(32 <= byte < 127 or byte == 10 for byte in data)


def corpus(name: str) -> list[Case]:
    """The kept cases of a parser."""
    cases = []
    for line in (CORPUS / f"{name}.jsonl").read_text("ascii").splitlines():
        raw = json.loads(line)
        data = raw["text"].encode() if "text" in raw else bytes.fromhex(raw["hex"])
        cases.append(Case(data, tuple(raw.get("n", ())), raw["from"], raw["gives"]))
    return cases


@dataclass
class Report:
    """What a search saw."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    found: dict[str, Case] = field(default_factory=dict)
    slowest_ns: int = 0

    def line(self, name: str) -> str:
        """For people."""
        accepted = sum(count for code, count in self.outcomes.items() if code == "accepted")
        return (
            f"{name}: {self.inputs} inputs, {accepted} accepted, {len(self.outcomes)} outcomes, "
            f"{len(self.found)} signatures, slowest {self.slowest_ns / 1e6:.2f} ms"
        )


def judge(target: Target, data: bytes, numbers: Numbers) -> tuple[str, str, int]:
    """(outcome, signature, ns) of one input. Raises: Finding."""
    started = time.perf_counter_ns()
    try:
        got = target.run(data, numbers)
    except target.refuses as refused:
        took = time.perf_counter_ns() - started
        code = getattr(refused, "code", None) or first_words(str(refused))
        detail = first_fault(str(refused)) if target.name.startswith(("control", "config")) else ""
        signature = f"{code} {raised_at(refused.__traceback__)} {detail}"
    except Exception as fault:
        raise Finding(f"{target.name} raised {fault!r} on {Case(data, numbers).line()}") from fault
    else:
        took = time.perf_counter_ns() - started
        try:
            target.check(data, numbers, got)
        except Exception as broken:
            raise Finding(f"{target.name} accepted, {broken!r}: {Case(data, numbers).line()}") from broken
        code, signature = "accepted", f"accepted {target.shape(got)}"
    if took > target.slow_ns and sys.gettrace() is None:  # each line costs more while coverage is measured
        took = min(took, *(timed(target, data, numbers) for _ in range(_AGAIN)))
        if took > target.slow_ns:
            raise Finding(f"{target.name} took {took / 1e6:.1f} ms for {len(data)} bytes: {data[:200]!r}")
    return code, signature, took


def timed(target: Target, data: bytes, numbers: Numbers) -> int:
    """One more measurement, in ns of this thread: a parser waits for nothing, and other work on the machine is not its
    fault."""
    started = time.thread_time_ns()
    with contextlib.suppress(target.refuses):
        target.run(data, numbers)
    return time.thread_time_ns() - started


def raised_at(trace: TracebackType | None) -> str:
    """The line that raised, which tells one broken rule from another of the same code."""
    line = 0
    while trace is not None:
        line, trace = trace.tb_lineno, trace.tb_next
    return str(line)


def first_words(text: str) -> str:
    return text.split(":", 1)[0] if "\n" not in text and not text.startswith("/") else "config"


def first_fault(text: str) -> str:
    """What a message says first, without the places and values in it: pydantic's words, which are its branches."""
    first = re.split(r"; |\n", text.split(":", 1)[1].strip())[0].rpartition(": ")[2]
    return re.sub(r"'[^']*'|[0-9]+", "N", first)[:60]


def search(target: Target, inputs: int, seed: int, start: list[Case]) -> Report:
    """Judge the kept cases, then as many mutations as ``inputs`` leaves. Raises: Finding."""
    noise = Random(seed)
    report = Report()
    pool = list(start)
    sound = [case for case in start if case.gives == "accepted"] or pool
    for n in range(inputs):
        if n < len(start):
            case = start[n]
            data, numbers = case.data, case.numbers
        else:
            parents = (
                sound if noise.random() < 0.6 else pool
            )  # what is broken twice tells less than what is broken once
            parent = parents[noise.randrange(len(parents))]
            data, numbers = target.mutate(noise, parent.data, parent.numbers)
            while noise.random() < 0.35:
                data, numbers = target.mutate(noise, data, numbers)
        code, signature, took = judge(target, data, numbers)
        report.outcomes[code] += 1
        report.slowest_ns = max(report.slowest_ns, took)
        if signature not in report.found:
            origin = start[n].origin if n < len(start) else f"mutation, seed {seed}"
            report.found[signature] = case = Case(data, numbers, origin, code)
            if n >= len(start) and len(data) < 5000 and len(pool) < 2000:
                (sound if code == "accepted" else pool).append(case)
    report.inputs = inputs
    return report
