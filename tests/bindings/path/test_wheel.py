"""Both wheels, with the C module and without: their tags, what they hold, and what runs from them."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from ...support.sources import ROOT
from .built import needs_compiler

pytestmark = pytest.mark.not_fast("the environment holds an offpath beside the wheel")

MODULE = "offpath/bindings/_path.abi3.so"
PROJECTS = {"offpath": ROOT, "offpath_host": ROOT / "host_helper"}
ASK = "from offpath.bindings import build; print(build.describe(), '|', build.check_build().what)"


def wheel(project: str, folder: Path, **environment: str) -> Path:
    command = [sys.executable, "-P", "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [*command, "--wheel-dir", str(folder), str(PROJECTS[project])],
        check=True, timeout=300, env=os.environ | {"OFFPATH_PURE": "0"} | environment,
    )  # fmt: skip
    (made,) = folder.glob("*.whl")
    return made


def says(made: Path, folder: Path) -> str:
    """What a process says that has the wheel, and third-party packages, and nothing else of offpath."""
    with zipfile.ZipFile(made) as archive:
        archive.extractall(folder)
    path = os.pathsep.join((str(folder), sysconfig.get_paths()["purelib"]))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "OFFPATH"))}
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", ASK], env=environment | {"PYTHONPATH": path}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("project", PROJECTS)
def test_with_a_compiler_a_wheel_has_the_module_and_its_platform(project: str, tmp_path: Path) -> None:
    needs_compiler()
    made = wheel(project, tmp_path / "wheel")
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert made.name.startswith(f"{project}-")
    assert made.name.endswith(f"-cp311-abi3-{platform}.whl")
    with zipfile.ZipFile(made) as archive:
        assert archive.namelist().count(MODULE) == 1
        assert not [name for name in archive.namelist() if name.startswith("offpath/bindings/") and name[-2:] == ".c"]
    assert says(made, tmp_path / "site") == "request path in C | the request path's mechanics run in C"


@pytest.mark.parametrize("project", PROJECTS)
@pytest.mark.parametrize(
    "environment", [{"OFFPATH_PURE": "1"}, {"CC": "no-such-compiler"}], ids=["asked", "no-compiler"]
)
def test_without_it_a_wheel_is_pure_and_for_every_platform(
    project: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """Also from a checkout that has a module for itself."""
    made = wheel(project, tmp_path / "wheel", **environment)
    assert made.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(made) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
        pages = {name for name in archive.namelist() if name.startswith("offpath/cli/web/static/")}
    files = {f"offpath/cli/web/static/{path.name}" for path in (ROOT / "scripts/offpath/cli/web/static").iterdir()}
    assert pages == (files if project == "offpath" else set()), "the web page is with the command line"
    said = says(made, tmp_path / "site")
    assert said == "pure Python | pure Python: the C module is not built; a request costs more processor time"
