"""Which build runs: the C module where it is there and fits, else Python, with the reason."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from offpath.bindings import build, native, twins
from offpath.bindings.findings import CODES, Severity
from offpath.bindings.sources import checksum

from ...support.command import offpath
from ...support.sources import ROOT
from .built import SOURCES, compiled, hook

PORTIONS = ("bindings", "sched", "dpu_daemon")
ASK = (
    "from offpath.bindings import build, native\n"
    "from offpath.dpu_daemon.durability.journal import native as journal\n"
    "finding = build.check_build()\n"
    "print(native.module is not None, journal.record is not None)\n"
    "print(finding.severity.value, finding.what)\n"
)


def ask(root: Path, **environment: str) -> tuple[str, str]:
    """What a process finds that imports the tree in ``root``: (which functions are C's, the doctor's finding)."""
    path = os.pathsep.join(str(root / role) for role in PORTIONS)
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASK], env=os.environ | {"PYTHONPATH": path, "OFFPATH_PURE": "0"} | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    functions, finding = done.stdout.splitlines()
    return functions, finding


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The packages with a C module of their own."""
    for role in PORTIONS:
        shutil.copytree(ROOT / role, tmp_path / role, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*emulator"))
    shutil.copy(compiled(tmp_path), tmp_path / "bindings/offpath/bindings")
    return tmp_path


def test_the_module_runs_unless_it_is_switched_off(tree: Path) -> None:
    assert ask(tree) == ("True True", "ok the request path's mechanics run in C")
    assert ask(tree, OFFPATH_PURE="1") == ("False False", "note pure Python: OFFPATH_PURE=1")


def test_without_the_module_python_runs(tree: Path) -> None:
    (tree / "bindings/offpath/bindings/_path.abi3.so").unlink()
    functions, finding = ask(tree)
    assert functions == "False False"
    assert finding == "note pure Python: the C module is not built; a request costs more processor time"


@pytest.mark.parametrize(
    ("path", "text", "becomes", "functions", "why"),
    [
        ("csrc/path/crc.c", "0xEDB88320u", "0xEDB88321u", "False False", "stale: its sources have changed"),
        ("offpath/bindings/wire/host.py", '"<BBBBIQQQQQ"', '"<BBBBIQQQQI"', "False False", "built for other formats"),
        ("offpath/bindings/wire/header.py", "MAX_DIMS: Final = 6", "MAX_DIMS: Final = 5", "False False", "formats"),
    ],
)
def test_a_stale_module_is_not_used(tree: Path, path: str, text: str, becomes: str, functions: str, why: str) -> None:
    file = tree / "bindings" / path
    source = file.read_text()
    assert source.count(text) == 1
    file.write_text(source.replace(text, becomes))
    found = ask(tree)
    assert found[0] == functions
    assert found[1].startswith("warning pure Python: the C module is stale: "), found
    assert why in found[1]


def test_a_journal_of_other_formats_is_written_in_python(tree: Path) -> None:
    file = tree / "dpu_daemon/offpath/dpu_daemon/durability/journal/codec.py"
    file.write_text(file.read_text().replace('_COPY = struct.Struct("<QIQI")', '_COPY = struct.Struct("<QIQQ")'))
    assert ask(tree)[0] == "True False"


def test_a_module_that_cannot_be_loaded_is_reported(tree: Path) -> None:
    (tree / "bindings/offpath/bindings/_path.abi3.so").write_bytes(b"no library")
    functions, finding = ask(tree)
    assert functions == "False False"
    assert finding.startswith("warning pure Python: the C module cannot be loaded: ")


def test_hook_and_package_agree_on_the_checksum() -> None:
    assert hook().checksum(SOURCES) == checksum(SOURCES)
    assert len(checksum(SOURCES)) == 8


def test_version_and_doctor_say_which_build_runs() -> None:
    shown = offpath("--version").out.strip()
    assert shown.endswith(f"({build.describe()})")
    found = [each for each in json.loads(offpath("doctor", "--json").out) if each["code"] == "build"]
    assert [each["severity"] for each in found] == [build.check_build().severity.value]
    assert "build" in CODES


def test_this_process_runs_what_it_says() -> None:
    assert (native.module is None) == bool(native.why)
    words = [] if native.module is None else ["request path in C"]
    words += ["dpu_daemon and sched compiled"] if build.compiled() else []
    assert build.describe() == (", ".join(words) or "pure Python")
    assert build.check_build().severity in (Severity.OK, Severity.NOTE), "the checkout's module is stale: set up again"
    assert native.parse_result is (twins if native.module is None else native.module).parse_result
