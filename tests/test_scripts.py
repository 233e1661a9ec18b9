"""The scripts: what they install is locked with hashes, and nothing in the current folder is taken for a library."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
LOCKS = {
    "base.txt": ("daemon", "host", "gpu", "plot", "sim", "collab", "gateway", "web", "dev", "fast"),
    "image.txt": ("daemon", "host", "gpu", "dev"),
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def wishes(extras: tuple[str, ...]) -> list[str]:
    return [*PROJECT["dependencies"], *(wish for extra in extras for wish in PROJECT["optional-dependencies"][extra])]


def pinned(text: str) -> dict[str, tuple[str, list[str]]]:
    """Package → (version, hashes)."""
    found: dict[str, tuple[str, list[str]]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        requirement, *hashes = line.split(" --hash=")
        parsed = Requirement(requirement.strip())
        (only,) = parsed.specifier
        assert only.operator == "==", line
        found[parsed.name.lower().replace("_", "-")] = (only.version, [each.strip() for each in hashes])
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_that_is_installed_is_locked_with_hashes(name: str) -> None:
    text = (ROOT / "scripts" / "requirements" / name).read_text()
    packages = pinned(text)
    assert len(packages) > 30
    for package, (_, hashes) in packages.items():
        assert hashes, package
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), package
    for wish in map(Requirement, wishes(LOCKS[name])):
        version, _ = packages[wish.name.lower().replace("_", "-")]
        assert wish.specifier.contains(version, prereleases=True), f"{wish} is not {version}: run ./scripts/lock"
    for line in text.splitlines():
        assert "://" not in line
        assert not line.startswith("-"), line


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_is_of_the_dependencies_that_there_are(name: str) -> None:
    asked = "\n".join([PROJECT["requires-python"], *wishes(LOCKS[name])]) + "\n"
    digest = hashlib.sha256(asked.encode()).hexdigest()
    first = (ROOT / "scripts" / "requirements" / name).read_text().splitlines()[0]
    assert first.endswith(f" {' '.join(LOCKS[name])} with sha256 {digest}"), "run ./scripts/lock"


def test_a_module_in_the_current_folder_is_not_taken_for_pythons_own(tmp_path: Path) -> None:
    """All that `_env` runs before there is an environment, where a hostile folder is the current one."""
    ran = tmp_path / "ran"
    for name in ("venv", "ensurepip", "pip", "uvloop", "os", "sysconfig"):
        (tmp_path / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write({name!r})\nraise SystemExit(9)\n")
    script = f"""
        set -euo pipefail
        source {ROOT}/scripts/_env
        offpath_venv={tmp_path}/made
        offpath_identity {sys.executable}
        offpath_make_venv {sys.executable}
        "$offpath_venv/bin/python" -I -m pip --version
    """
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert not ran.exists(), ran.read_text()
    assert done.returncode == 0, done.stderr


def test_every_python_that_scripts_and_commands_start_ignores_the_current_folder() -> None:
    names = ("_env", "_torch", "test", "lock", "rxe/build", "rxe/in-image", "bare-root")
    for path in (ROOT / "scripts" / name for name in names):
        for line in path.read_text().splitlines():
            if re.search(r'(python3?"?|"\$1"|"\$python") -(m|c|)\s', line.split("#")[0]):
                raise AssertionError(f"{path.name}: {line.strip()}: give -I or -P")
    for path in (ROOT / "scripts" / "offpath").rglob("*.py"):
        assert not re.search(r'sys\.executable, "-[mc]"', path.read_text("utf-8")), f"{path.name}: give -P"
