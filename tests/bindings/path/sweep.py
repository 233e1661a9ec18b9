"""Compares the C functions with their twins on mutated inputs: `python -m tests.bindings.path.sweep MODULE INPUTS SEED
[PART…]`, in the root.

Both get the same input. They must return equal values of the same types, or raise the same error with the same text.
"""

from __future__ import annotations

import json
import struct
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final

from offpath.bindings import twins
from offpath.bindings.wire.header import HEADER_COPY_BYTES, MAX_TENSORS, TENSOR_BYTES, pack_request

from ...fuzz.mutate import ANSWER, LAUNCH, REQUEST, RESULT, Mutation, edge, spoil, struct_mutation
from . import journalled, sockets
from .built import loaded

CORPUS: Final = Path(__file__).resolve().parents[2] / "fuzz/corpus"
_OF_TENSORS: Final = {"dtype", "dims", "reserved", "tensor_bytes", "tensor_bounds", "tensor_alignment"}
Outcome = tuple[Any, ...]
Pair = Callable[[Random], tuple[Outcome, Outcome]]
"""Draws an input, and gives what C and Python make of it."""


class Differs(AssertionError):
    """C and Python disagree."""


def outcome(call: Callable[..., Any], *args: Any) -> Outcome:
    """What a call returns, with all types, or what it raises."""
    try:
        value = call(*args)
    except Exception as fault:
        return "raised", type(fault), str(fault), getattr(fault, "code", ""), getattr(fault, "detail", "")
    return "returned", kinds(value), value


def kinds(value: Any) -> Any:
    """The type of a value and of what it contains."""
    return (type(value), *map(kinds, value)) if isinstance(value, tuple) else type(value)


def word(of: Outcome) -> str:
    """An outcome in a word, for the count."""
    if of[0] == "raised":
        return str(of[3] or of[1].__name__)
    return f"returned {of[2]}" if of[2] is None or isinstance(of[2], bool) else "returned"


def cases(name: str) -> list[tuple[bytes, tuple[int, ...]]]:
    """The kept inputs of a parser (tests/fuzz)."""
    found = []
    for line in (CORPUS / f"{name}.jsonl").read_text("ascii").splitlines():
        raw = json.loads(line)
        data = raw["text"].encode() if "text" in raw else bytes.fromhex(raw["hex"])
        found.append((data, tuple(raw.get("n", ()))))
    return found


class Inputs:
    """Mutated inputs of one parser. What was mutated is mutated further, now and then."""

    def __init__(self, name: str, mutate: Mutation, *more: tuple[bytes, tuple[int, ...]]) -> None:
        self._pool = [*cases(name), *more]
        self._kept = len(self._pool)
        self._mutate = mutate

    def draw(self, noise: Random) -> tuple[bytes, tuple[int, ...]]:
        data, numbers = self._pool[noise.randrange(len(self._pool))]
        if noise.random() < 0.1:
            return data, numbers
        data, numbers = self._mutate(noise, data, numbers)
        while noise.random() < 0.3:
            data, numbers = self._mutate(noise, data, numbers)
        if len(data) < 5000 and noise.random() < 0.05:
            if len(self._pool) < 2 * self._kept + 100:
                self._pool.append((data, numbers))
            else:
                self._pool[noise.randrange(self._kept, len(self._pool))] = data, numbers
        return data, numbers


# -- parsers -------------------------------------------------------------------------------------------------------
class Parser:
    """A C parser beside its twin. C must leave to the twin what is invalid, and nothing else."""

    def __init__(self, module: Any, name: str, twin: str = "") -> None:
        self._parse, self._twin = getattr(module, name), getattr(twins, name)
        self._is_left = False
        left_to = getattr(twins, twin or name)

        def leave(*args: Any) -> Any:
            self._is_left = True
            return left_to(*args)

        module.configure(SimpleNamespace(**vars(twins) | {twin or name: leave}))

    def both(self, *args: Any) -> tuple[Outcome, Outcome]:
        """The outcomes, and whether the twin had to be asked. A limit of more than 64 bits is always left to it."""
        self._is_left = False
        in_c, in_python = outcome(self._parse, *args), outcome(self._twin, *args)
        is_vast = any(isinstance(arg, int) and arg >= 1 << 64 for arg in args)
        return (*in_c, self._is_left or is_vast), (*in_python, in_python[0] == "raised" or is_vast)


def requests(module: Any) -> Pair:
    dims = struct.pack("<BBHI6IQQ", 1, 4, 0, 0, *[1 << 16] * 4, 0, 0, 0, 0)  # their product is 0 modulo 2^64
    wrapped = pack_request(1, 1, 64, dims), (64,)
    inputs = Inputs("parse_request", struct_mutation(REQUEST, 128, has_crc=True), wrapped, wrapped)
    parser = Parser(module, "take_request", "check_request")
    memory = bytearray(4 * HEADER_COPY_BYTES)
    view, last = memoryview(memory), 3 * HEADER_COPY_BYTES

    def pair(noise: Random) -> tuple[Outcome, Outcome]:
        data, (most, *_) = inputs.draw(noise)
        at = noise.choice((0, 64, last))
        if noise.random() < 0.03:  # memory ends within the copy, or before it
            at = noise.choice((last + 1, last + 1, len(memory) - 1, len(memory), len(memory) + 1, 1 << 40))
        copied = data[:HEADER_COPY_BYTES].ljust(HEADER_COPY_BYTES, b"\0")[: max(0, len(memory) - at)]
        memory[at : at + len(copied)] = copied
        if at <= last:
            return parser.both(view, at, most)
        return outcome(module.take_request, view, at, most), outcome(twins.take_request, view, at, most)

    return pair


def answers(module: Any) -> Pair:
    inputs = Inputs("parse_answer", struct_mutation(ANSWER, 128, has_crc=True))
    parser = Parser(module, "parse_answer")

    def pair(noise: Random) -> tuple[Outcome, Outcome]:
        data, (most, *_) = inputs.draw(noise)
        data = data if noise.random() < 0.3 else data[:HEADER_COPY_BYTES].ljust(HEADER_COPY_BYTES, b"\0")
        # The descriptors of an answer are the twin's to unpack, in a valid answer too.
        in_c, in_python = parser.both(data, most)
        code = in_python[3] if in_python[0] == "raised" else ""
        return (in_c[:-1], in_python[:-1]) if code in _OF_TENSORS else (in_c, in_python)

    return pair


def launches(module: Any) -> Pair:
    inputs = Inputs("parse_launch", struct_mutation(LAUNCH, 40, has_crc=False))
    parser = Parser(module, "parse_launch")
    return lambda noise: parser.both(inputs.draw(noise)[0])


def results(module: Any) -> Pair:
    inputs = Inputs("parse_result", struct_mutation(RESULT, 48, has_crc=False))
    parser = Parser(module, "parse_result")

    def pair(noise: Random) -> tuple[Outcome, Outcome]:
        if noise.random() < 0.05:  # near the limit of what is inline
            nbytes = noise.choice((0, 1, 3071, 3072, 3073, 3074, 4000))
            head = bytes([2, noise.randrange(9), 0, 1]) + bytes(36) + nbytes.to_bytes(8, "little")
            return parser.both(head + bytes(nbytes))
        return parser.both(inputs.draw(noise)[0])

    return pair


# -- packers -------------------------------------------------------------------------------------------------------
def number(noise: Random, size: int) -> Any:
    """For a field of ``size`` bytes: mostly one that fits."""
    drawn = noise.random()
    if drawn < 0.98:
        return edge(noise, size)
    return noise.choice((-1, 1 << 8 * size, (1 << 8 * size) + 1, 1 << 64, 1 << 200, True, False, 1.5, None, "1", b"1"))


def tensors(noise: Random) -> Any:
    drawn = noise.random()
    if drawn < 0.7:
        return noise.randbytes(TENSOR_BYTES * noise.choice((0, 1, 2, 3, 5, 8, MAX_TENSORS)))
    if drawn < 0.9:
        return spoil(noise, noise.randbytes(TENSOR_BYTES * noise.choice((0, 1, 2, 8, MAX_TENSORS, MAX_TENSORS + 1))))
    most = bytes(TENSOR_BYTES * (MAX_TENSORS + 1))
    return noise.choice((most, bytes(TENSOR_BYTES * 256), bytearray(TENSOR_BYTES), b"", None, 5))


def packed_requests(module: Any) -> Pair:
    def pair(noise: Random) -> tuple[Outcome, Outcome]:
        args = [number(noise, size) for size in (8, 4, 8)] + [tensors(noise)]
        args += [number(noise, size) for size in (2, 2, 1, 4, 4, 8)]
        args = args[: noise.choice((3, 4, 5, 9, 9, 10, 10))]
        return outcome(module.pack_request, *args), outcome(twins.pack_request, *args)

    return pair


def packed_answers(module: Any) -> Pair:
    def pair(noise: Random) -> tuple[Outcome, Outcome]:
        args = [number(noise, size) for size in (8, 1, 2, 4, 4, 4, 8, 8)]
        stages: Any = tuple(number(noise, 8) for _ in range(noise.choice((6, 6, 6, 6, 6, 5, 7))))
        args += [stages if noise.random() < 0.95 else noise.choice((None, list(stages), ()))]
        args = [*args, tensors(noise), *(number(noise, size) for size in (2, 4, 4, 8))]
        args = args[: noise.choice((2, 5, 8, 9, 10, 10, 11, 12, 13, 14, 14))]
        return outcome(module.pack_answer, *args), outcome(twins.pack_answer, *args)

    return pair


# -- memory --------------------------------------------------------------------------------------------------------
def copies(module: Any) -> Pair:
    """Also between overlapping ranges of one memory, and with a released one."""
    room = 512

    def pair(noise: Random) -> tuple[Outcome, Outcome]:
        start = noise.randbytes(room)
        is_one, is_released = noise.random() < 0.3, noise.random() < 0.02
        args = [noise.choice((0, 1, 63, noise.randrange(room), room - 1, room, room + 1, -1)) for _ in range(2)]
        nbytes = noise.choice((0, 1, 64, noise.randrange(room), room - max(args[0], 0), room, room + 1, -1, 1 << 62))
        found = []
        for copy in (module.copy, twins.copy):
            source, target = bytearray(start), bytearray(room)
            views = [memoryview(source), memoryview(source if is_one else target)]
            if is_released:
                views[nbytes % 2].release()
            found.append((*outcome(copy, views[0], args[0], views[1], args[1], nbytes), source, target))
        return found[0], found[1]

    return pair


PARTS: Final[dict[str, Callable[[Any], Pair]]] = {
    "requests": requests,
    "answers": answers,
    "launches": launches,
    "results": results,
    "packed_requests": packed_requests,
    "packed_answers": packed_answers,
    "copies": copies,
    "records": journalled.records,
    "bells": sockets.Bells,
}


def compare(module: Any, part: str, inputs: int, seed: int) -> Counter[str]:
    """How often each outcome came. Raises: Differs."""
    noise = Random(f"{part} {seed}")
    pair = PARTS[part](module)
    seen: Counter[str] = Counter()
    try:
        for n in range(inputs):
            in_c, in_python = pair(noise)
            if in_c != in_python:
                raise Differs(f"{part}, input {n} of seed {seed}: C {in_c!r:.300}, Python {in_python!r:.300}")
            seen[word(in_python)] += 1
    finally:
        getattr(pair, "close", bool)()
    return seen


def main() -> None:
    """All parts, or those named."""
    path, inputs, seed, *parts = sys.argv[1:]
    module = loaded(Path(path))
    for part in parts or PARTS:
        seen = compare(module, part, int(inputs), int(seed))
        print(f"{part}: {seen.total()} inputs, {dict(seen.most_common())}", flush=True)


if __name__ == "__main__":
    main()
