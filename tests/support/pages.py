"""Pages of the documentation as scripts: what a reader types, the files that a reader saves, the output that is shown.

The rules, for README's section "Use it" and docs/tutorials:

- A block of ``sh`` is typed. A block of ``text`` after it (no other block between) is its output, standard output and
  standard error as a terminal shows them.
- A block of another language is saved as the file that the paragraph above it names last, if it names one.
- Everything happens in one bash. A block without a language is a picture.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from .namespaces import needs_namespaces
from .sources import ROOT

_FENCE: Final = re.compile(r"^```(?P<language>[a-z]*)\n(?P<code>.*?)^```$", re.M | re.S)
_FILE: Final = re.compile(r"`([\w/.-]+\.(?:py|toml|sh|conf))`")
_MARK: Final = "-- end of step"
_END: Final = re.compile(rf"^{_MARK} \d+\n", re.M)
_TIMEOUT_S: Final = 240


@dataclass(frozen=True, slots=True)
class Step:
    """A block that is typed or saved. ``file`` "": it is typed; ``output``: what the page shows, None: nothing."""

    code: str
    line: int
    file: str = ""
    output: str | None = None

    @property
    def command(self) -> str:
        """What bash gets."""
        if not self.file:
            return self.code
        return f"cat > {self.file} <<'END OF FILE'\n{self.code}END OF FILE\n"


def steps(text: str) -> list[Step]:
    """The blocks of a page, or of a part of one, in order."""
    found: list[Step] = []
    is_after_command = False
    for block in _FENCE.finditer(text):
        code, line = block["code"], text.count("\n", 0, block.start()) + 1
        paragraph = text[: block.start()].rstrip("\n").rsplit("\n\n", 1)[-1]
        names = _FILE.findall(paragraph)
        if block["language"] == "text":
            assert is_after_command, f"line {line}: this output belongs to no command"
            found[-1] = replace(found[-1], output=code)
        elif block["language"] == "sh":
            found.append(Step(code, line))
        elif block["language"] and names:
            found.append(Step(code, line, names[-1]))
        is_after_command = block["language"] == "sh"
    return found


def script(page: list[Step]) -> str:
    """What a newcomer does. After each step it prints a mark; what still runs when it fails is ended."""
    lines = ["set -eu", "trap 'kill $(jobs -p) 2> /dev/null || :' EXIT"]
    for number, step in enumerate(page):
        lines += [step.command, f"echo '{_MARK} {number}'"]
    return "\n".join(lines) + "\n"


def outputs(printed: str) -> list[str]:
    """What `script` printed, by step; the last one is what came after the last mark."""
    return _END.split(printed)


def matches(shown: str, printed: str) -> bool:
    """``...`` stands for anything within a line; on a line of its own, for any lines or none."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else r".*?".join(map(re.escape, line.split("..."))) + r"[ \t]*\n"
        for line in shown.splitlines()
    )
    return re.fullmatch(pattern, printed if printed.endswith("\n") or not printed else printed + "\n") is not None


def differences(page: list[Step], printed: str) -> Iterator[str]:
    """What the page shows and its commands did not print."""
    for step, output in zip(page, outputs(printed), strict=False):
        if step.output is not None and not matches(step.output, output):
            yield f"line {step.line}: the page shows\n{step.output}\nprinted was\n{output}"


_LOOPBACK_UP: Final = """
import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh22x", b"lo", 1))
"""
"""SIOCSIFFLAGS, IFF_UP."""


def alone() -> list[str]:
    """A command that gives root a /run and a loopback of its own: /run/offpath is the machine's, ports are others'."""
    if os.getuid():
        return []
    needs_namespaces("mount", "net")
    words = ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c"]
    words += ['mount -t tmpfs tmpfs /run && "$0" -I -c "$1" && shift && exec "$@"', sys.executable, _LOOPBACK_UP]
    return words


def follow(page: list[Step], home: Path) -> subprocess.CompletedProcess[str]:
    """By bash, in the checkout, from a fresh home and an empty environment; its output in one stream."""
    if Path(sys.prefix) != ROOT / ".venv":
        pytest.skip("these tests run in an environment that is not the scripts' own .venv")
    environment = {
        "HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    if chosen := os.environ.get("OFFPATH_PYTHON"):  # else the scripts would make .venv anew
        environment["OFFPATH_PYTHON"] = chosen
    return subprocess.run(
        [*alone(), "timeout", "--kill-after=5", str(_TIMEOUT_S), "bash"], input=script(page), cwd=ROOT,
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
