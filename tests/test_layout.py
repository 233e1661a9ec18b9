"""The tree: one namespace with a portion per role, arrows one way, no file too long."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LEAVES = {
    "dpu_daemon": "dpu_daemon",
    "host_helper": "host_helper",
    "bindings": "bindings",
    "sched": "sched",
    "scripts": "cli",
}
WITHOUT_CIRCLES = ("dpu_daemon", "host_helper", "bindings", "sched", "scripts")
MAX_LINES = 600


def sources(*suffixes: str) -> Iterator[Path]:
    for folder in (*LEAVES, "tests"):
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes and path.is_file())


@pytest.mark.parametrize("role", LEAVES)
def test_no_init_file_hides_the_other_portions(role: str) -> None:
    assert not (ROOT / role / "__init__.py").exists()
    assert not (ROOT / role / "offpath" / "__init__.py").exists()


@pytest.mark.parametrize("role", LEAVES)
def test_each_portion_has_one_package_with_its_types(role: str) -> None:
    leaf = ROOT / role / "offpath" / LEAVES[role]
    assert (leaf / "__init__.py").is_file()
    assert (leaf / "py.typed").is_file()
    assert sorted(path.name for path in leaf.parent.iterdir() if path.name != "__pycache__") == [LEAVES[role]]


@pytest.mark.parametrize("role", LEAVES)
def test_no_python_file_lies_beside_the_namespace(role: str) -> None:
    """Each role folder is on `sys.path` of an editable install: a module there would be importable by its bare name."""
    beside = [path for path in (ROOT / role).rglob("*.py") if path.relative_to(ROOT / role).parts[0] != "offpath"]
    assert beside == []


def test_sched_is_the_standard_librarys_from_the_root_too() -> None:
    code = "import sched, sys; print(sched.__file__); assert sched.scheduler; import offpath.sched"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).is_relative_to(ROOT / "sched")


def test_the_version_is_the_installed_distributions() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert importlib.metadata.version("offpath") == declared
    literal = re.compile(r"^__version__\s*=\s*[\"']", re.MULTILINE)
    assert [path for path in sources(".py") if literal.search(path.read_text())] == []


def test_no_file_is_longer_than_600_lines() -> None:
    counted = {path.relative_to(ROOT): len(path.read_bytes().splitlines()) for path in sources(".py", ".c", ".h")}
    assert {str(path): lines for path, lines in counted.items() if lines > MAX_LINES} == {}


LARGE = {
    "dpu_daemon": ("durability/service_manager.py", "durability/journal/ring.py", "hosts/lanes.py",
                   "ingress/admission.py", "switch/job_at_switch.py", "switch/switch.py"),
    "host_helper": ("supervisor.py",),
    "sched": ("ina/protocol/controller.py", "jobs/book.py", "jobs/leasing.py"),
}  # fmt: skip
"""Modules over 400 lines: each is one state machine, whose transitions are read side by side."""


@pytest.mark.parametrize("role", LARGE)
def test_only_single_state_machines_have_more_than_400_lines(role: str) -> None:
    package = ROOT / role / "offpath" / LEAVES[role]
    large = {str(path.relative_to(package)) for path in package.rglob("*.py") if lines(path) > 400}
    assert large <= set(LARGE[role]), "split it by responsibility"


def test_the_daemon_only_wires() -> None:
    path = ROOT / "dpu_daemon/offpath/dpu_daemon/daemon.py"
    public = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not node.attr.startswith("_")
    }
    assert lines(path) <= 200
    assert len(public) <= 10, f"a part belongs to one of its rooms' objects: {sorted(public)}"


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of the tree in `root`, not those of the installed one (`-S`: no .pth file is read)."""
    path = [*(root / role for role in LEAVES), importlib.metadata.distribution("import-linter").locate_file("")]
    lint = "from importlinter.cli import lint_imports_command as lint; lint()"
    return subprocess.run(
        [sys.executable, "-S", "-c", lint, "--no-logo", "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copied_tree(tmp_path: Path) -> Path:
    """The tree as it is, free to be spoilt."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for role in LEAVES:
        shutil.copytree(
            ROOT / role / "offpath", tmp_path / role / "offpath", ignore=shutil.ignore_patterns("__pycache__")
        )
    return tmp_path


def test_the_import_contracts_hold(copied_tree: Path) -> None:
    done = lint_imports(copied_tree)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("folder", "statement", "contract"),
    [
        ("dpu_daemon/offpath/dpu_daemon", "import offpath.host_helper", "dpu_daemon imports sched and bindings only"),
        (
            "host_helper/offpath/host_helper",
            "import offpath.cli",
            "host_helper imports bindings, and of sched what ranks decide with",
        ),
        ("bindings/offpath/bindings", "import offpath.sched", "bindings imports nothing of ours"),
        ("sched/offpath/sched", "import offpath.dpu_daemon", "sched imports nothing of ours"),
        ("sched/offpath/sched", "from os import path", "sched does no I/O"),
        ("sched/offpath/sched", "import asyncio.events", "sched does no I/O"),
    ],
)
def test_a_planted_import_is_caught(copied_tree: Path, folder: str, statement: str, contract: str) -> None:
    (copied_tree / folder / "planted.py").write_text(statement + "\n")
    done = lint_imports(copied_tree)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"^{re.escape(contract)}.* BROKEN$", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("role", WITHOUT_CIRCLES)
def test_a_planted_circle_is_caught(copied_tree: Path, role: str) -> None:
    portion = copied_tree / role / "offpath" / LEAVES[role]
    (portion / "planted.py").write_text(f"import offpath.{LEAVES[role]}.planted_too\n")
    (portion / "planted_too.py").write_text(f"import offpath.{LEAVES[role]}.planted\n")
    done = lint_imports(copied_tree)
    assert done.returncode == 1, done.stdout + done.stderr
    broken = re.findall(r"^(.+) BROKEN$", done.stdout, re.MULTILINE)
    assert broken == [f"{LEAVES[role]} has no circles"], done.stdout


@pytest.mark.parametrize(
    ("importing", "statement"),
    [
        ("dpu_daemon/offpath/dpu_daemon/hosts/lanes.py", "import offpath.dpu_daemon.hosts.host"),
        ("dpu_daemon/offpath/dpu_daemon/durability/journal/gauges.py", "import offpath.dpu_daemon.requests.book_loop"),
    ],
)
def test_a_module_that_imports_its_importer_is_caught(copied_tree: Path, importing: str, statement: str) -> None:
    """What is imported here imports the other one already. An import for types alone counts."""
    module = copied_tree / importing
    module.write_text(f"{module.read_text()}\n\nif TYPE_CHECKING:\n    {statement}\n")
    done = lint_imports(copied_tree)
    assert done.returncode == 1, done.stdout + done.stderr
    role = importing.partition("/")[0]
    assert re.search(rf"^{role} has no circles BROKEN$", done.stdout, re.MULTILINE), done.stdout
