"""Runs suites, each in a pytest of its own, and keeps their verdicts."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from . import records
from .recorder import lines_of
from .sources import digest
from .table import REST, ROOT, Suite, paths

PROGRESS: Final = ROOT / "out" / "tests"
_NO_TESTS: Final = 5
"""pytest's exit code when all tests had passed before."""
_ENDS_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run ended. ``verdict``: the new one, unless a test failed or some are still to run."""

    suite: str
    code: int
    is_over_time: bool
    verdict: records.Verdict | None


def run(suite: Suite, size: str, *, most_s: float | None = None, is_kept: bool = True, quiet: bool = False) -> Ran:
    """Run a suite, or the rest of one that was stopped, for at most ``most_s`` seconds.

    ``is_kept``: the verdict goes to docs/evidence. A test that failed runs again when the suite does.
    """
    sources = digest(suite.sources)
    progress = _progress(suite, size, sources)
    started = time.monotonic()
    code, is_over = _pytest(suite, size, progress, most_s, is_kept=is_kept, quiet=quiet)
    lines = lines_of(progress)
    took = {"seconds": round(time.monotonic() - started, 1)}
    _note(progress, took)
    if is_kept and size == "full":
        is_whole = not is_over and code in (0, _NO_TESTS)
        records.keep_part(suite.name, size, [] if is_whole else [*lines, took])
    if is_over:
        return Ran(suite.name, code, True, None)
    if code not in (0, _NO_TESTS):
        if is_kept and records.withdraw(suite.name, size, sources):
            print(f"offpath: {suite.name}: the verdict of these sources is withdrawn", file=sys.stderr)
        return Ran(suite.name, code, False, None)
    verdict = _verdict(suite, size, sources, [*lines, took])
    if verdict is not None and is_kept:
        records.write(verdict)
        progress.unlink()
    return Ran(suite.name, 0 if verdict else _NO_TESTS, False, verdict)


def _progress(suite: Suite, size: str, sources: str) -> Path:
    """The file of what has run so far; a former one of other sources is dropped. What another machine has kept of these
    sources counts."""
    PROGRESS.mkdir(parents=True, exist_ok=True)
    path = PROGRESS / f"{suite.name}.{size}.jsonl"
    head = {"sources": sources, "python": _python()}
    if lines_of(path)[:1] != [head]:
        kept = records.part(suite.name, size)
        lines = kept if kept[:1] == [head] else [head]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    elif not path.read_bytes().endswith(b"\n"):  # killed while it wrote
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")
    return path


def _note(progress: Path, line: dict[str, Any]) -> None:
    with progress.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _pytest(
    suite: Suite, size: str, progress: Path, most_s: float | None, *, is_kept: bool, quiet: bool
) -> tuple[int, bool]:
    """Exit code, and whether it was stopped because its time was over."""
    command = [sys.executable, "-P", "-m", "pytest", *paths(suite.tests)]
    command += ["-n", str(os.cpu_count() or 2)] if suite.name == REST else []
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
    environment.pop("PYTHONPATH", None)  # it was for this module
    environment |= {
        "OFFPATH_TEST_SIZE": size, "OFFPATH_TEST_SUITE": suite.name, "OFFPATH_TEST_PROGRESS": str(progress),
    }  # fmt: skip
    if size == "full" and is_kept:
        environment["OFFPATH_EVIDENCE"] = str(records.FOLDER.parent)
    output = subprocess.PIPE if quiet else None
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT if quiet else None, text=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=most_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # tests end their processes
            try:
                process.communicate(timeout=_ENDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
            return process.wait(), True
    if quiet:
        print(said if process.returncode not in (0, _NO_TESTS) else said.rstrip().rpartition("\n")[2])
    return process.returncode, False


def _verdict(suite: Suite, size: str, sources: str, lines: list[dict[str, Any]]) -> records.Verdict | None:
    """Of a whole run without failure; None: nothing passed."""
    last = {line["test"]: line for line in lines if "test" in line}
    passed = sorted(test for test, line in last.items() if line["outcome"] == "passed")
    if not passed:
        return None
    units = {name: records.Unit(of, said) for line in last.values() for name, of, said in line.get("units", ())}
    former = records.read(suite.name, size)
    commit = _git("rev-parse", "--short=12", "HEAD") or "unknown"
    return records.Verdict(
        suite=suite.name,
        size=size,
        sources=sources,
        seconds=round(sum(line["seconds"] for line in lines if "test" not in line and "seconds" in line), 1),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        commit=commit,
        is_clean=_git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/evidence")
        == "",  # its own records
        python=_python(),
        tests=passed,
        skipped=dict(Counter(_reason(line) for line in last.values() if line["outcome"] == "skipped")),
        units=(former.units if former else {}) | units,
    )


def _reason(line: dict[str, Any]) -> str:
    return str(line.get("reason", "")).removeprefix("Skipped: ")[:200]


def _python() -> str:
    return f"{platform.python_version()} {platform.machine()}"


def _git(*words: str) -> str | None:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
