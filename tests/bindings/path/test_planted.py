"""Would the sweep see a fault of the C sources? Each bug is one text changed; the sweep of a part must find it.

A bug is compiled into a folder of its own and swept in a process of its own, which it may crash.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from ...sizes import SIZE
from ...support.sources import ROOT
from .built import compiled

pytestmark = pytest.mark.not_fast("it makes records of wrong types, which a compiled class refuses")

INPUTS = 40_000
BUGS = [
    # part, file, the text, what it becomes
    ("requests", "request.c", "payload_bytes > max_payload_bytes ||", "payload_bytes > max_payload_bytes + 8 ||"),
    ("requests", "request.c", "if (crc != load(copied + CRC_AT, 4))", "if (0)"),
    ("requests", "request.c", "at <= memory.len - COPY_BYTES", "at <= memory.len - COPY_BYTES + 1"),
    ("requests", "request.c", "return load(copied + ID_AT, 8) && path", "return path"),
    ("requests", "request.c", "sizeof zeros))", "sizeof zeros - 1))"),
    ("requests", "descriptors.c", "end > total_bytes)", "offset > total_bytes)"),
    ("requests", "descriptors.c", "__builtin_add_overflow(offset, nbytes, &end) ||", "(end = offset + nbytes, 0) ||"),
    ("requests", "descriptors.c", "fits = fits && !__builtin_mul_overflow(want, length, &want);", "want *= length;"),
    ("requests", "descriptors.c", "&& offset % element == 0", ""),
    ("requests", "descriptors.c", "[9] = 2,", "[9] = 4,"),
    ("requests", "descriptors.c", "return want ? want <= nbytes : !nbytes;", "return want <= nbytes;"),
    ("requests", "descriptors.c", "TENSOR_BYTES - NDIM_AT)", "TENSOR_BYTES - NDIM_AT - 1)"),
    ("requests", "request.c", "(flags & FLAG_PARAMETERS && !count)", "0"),
    ("launches", "messages.c", "rest % ROWS_BYTES || ", ""),
    ("launches", "messages.c", "rest > MAX_MEMBERS * ROWS_BYTES", "rest > MESSAGE_BYTES"),
    ("requests", "descriptors.c", "[18] = 16,", "[18] = 16, [20] = 1,"),
    ("requests", "request.c", "load(copied + PAYLOAD_CRC_AT, 4)))", "load(copied + BUDGET_AT, 4)))"),
    ("packed_requests", "crc.c", "for (; nbytes; bytes++, nbytes--)", "for (; nbytes > 1; bytes++, nbytes--)"),
    ("answers", "answer.c", "of_code(state->statuses, copied[STATUS_AT])", "state->statuses[copied[STATUS_AT] & 7]"),
    ("answers", "answer.c", "load(copied + RESULT_AT, 8) <= max_result_bytes", "max_result_bytes"),
    ("answers", "answer.c", "FIXED_BYTES + count * TENSOR_BYTES > nbytes", "FIXED_BYTES + count > nbytes"),
    ("launches", "messages.c", "message[2] > MAX_TENSORS || rest < 0", "rest < 0"),
    ("launches", "messages.c", " || load(message + 30, 2))", ")"),
    ("results", "messages.c", "message[1] > LAST_RESULT", "message[1] > LAST_RESULT + 1"),
    ("results", "messages.c", "left <= INLINE_BYTES : left == 0", "left <= INLINE_BYTES + 1 : left == 0"),
    ("results", "messages.c", "PyBool_FromLong(message[3])", "path_number(message + 3, 1)"),
    ("packed_requests", "bytes.c", "return value <= most;", "return 1;"),
    ("packed_requests", "request.c", "(nbytes / TENSOR_BYTES)", "(nbytes / FIXED_BYTES)"),
    ("packed_answers", "answer.c", "PyTuple_Size(stages) != STAGE_COUNT", "PyTuple_Size(stages) < STAGE_COUNT"),
    ("copies", "copy.c", "(const char *)source.buf + from, (size_t)nbytes)",
     "(const char *)source.buf + from, (size_t)(nbytes & ~7))"),
    ("copies", "copy.c", "at <= memory->len - nbytes", "at <= memory->len - nbytes + 1"),
    ("copies", "copy.c", "is_inside(from, nbytes, &source) && ", ""),
    ("records", "journal.c", "times & 0xFFFF", "times & 0x7FFF"),
    ("records", "journal.c", "path_crc(0, record + 4, RECORD_BYTES - 4)", "path_crc(0, record + 4, RECORD_BYTES - 5)"),
    ("records", "journal.c", "at += MORE_BYTES, written++)", "at += FIRST_BYTES, written++)"),
    ("records", "journal.c", "n < STAGE_COUNT; n++) {", "n < STAGE_COUNT - 1; n++) {"),
    ("records", "journal.c", "(count ? DECIDED : 0)", "DECIDED"),
    ("records", "journal.c", '{"attempt", 4}, {"error",', '{"attempt", 2}, {"error",'),
    ("bells", "sockets.c", "if (got == BELL_BYTES)", "if (got >= BELL_BYTES)"),
    ("bells", "sockets.c", "char message[MESSAGE_BYTES + 1];", "char message[MESSAGE_BYTES];"),
    ("bells", "sockets.c", "return failed();\n}\n\n/* end -> the immediate", "Py_RETURN_FALSE;\n}\n\n/* end -> the"),
]  # fmt: skip


def _sample() -> list[tuple[str, str, str, str]]:
    """One bug of each part and file, drawn by a seed; the whole count: all."""
    if SIZE == "full":
        return BUGS
    drawn = Random("planted in C").sample(BUGS, len(BUGS))
    return list({(part, name): (part, name, text, becomes) for part, name, text, becomes in drawn}.values())


CHOSEN = _sample()


@pytest.mark.parametrize(
    ("part", "name", "text", "becomes"), CHOSEN, ids=[f"{b[1]}-{b[2][:40].strip()}" for b in CHOSEN]
)
def test_a_planted_bug_is_found(part: str, name: str, text: str, becomes: str, tmp_path: Path) -> None:
    made = compiled(tmp_path, change=(name, text, becomes))
    done = subprocess.run(
        [sys.executable, "-m", "tests.bindings.path.sweep", str(made), str(INPUTS), "1", part],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode < 0 or "\nDiffers: " in done.stderr, done.stdout + done.stderr


def test_there_are_bugs_in_every_part() -> None:
    from .sweep import PARTS

    assert {part for part, *_ in CHOSEN} == set(PARTS)
    assert {(part, name) for part, name, *_ in CHOSEN} == {(part, name) for part, name, *_ in BUGS}
