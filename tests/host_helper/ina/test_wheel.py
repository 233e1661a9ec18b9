"""The thin wheel `offpath-host`, alone in a fresh environment: third-party packages are there, nothing else of ours."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MOST_BYTES = 400_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT / "host_helper")], check=True, timeout=120)
    (made,) = folder.glob("offpath_host-*.whl")
    return made


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that finds the wheel, and beyond it only what the wheel depends on."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return folder / "bin" / "python"


def run(python: Path, code: str, folder: Path) -> str:
    """The paths of PYTHONPATH are no site directories: what an editable install left there is not read."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL"))}
    environment |= {"PYTHONPATH": sysconfig.get_paths()["purelib"], "XDG_RUNTIME_DIR": str(folder)}
    done = subprocess.run(
        [str(python), "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_thin(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info" not in name]
    assert wheel.stat().st_size < MOST_BYTES
    parts = {name.split("/")[1] for name in names}
    assert parts == {"bindings", "host_helper", "sched"}
    assert {name for name in names if name.startswith("offpath/sched/") and "/protocol/" not in name} == {
        f"offpath/sched/{name}"
        for name in ("__init__.py", "py.typed", "errors.py", "ina/__init__.py", "ina/decision.py", "ina/patterns.py")
    }
    assert "offpath/bindings/data/mig_profiles.json" in names


def test_alone_it_has_the_helper_and_the_requester_and_not_the_daemon(python: Path, tmp_path: Path) -> None:
    said = run(
        python,
        "import importlib.util, offpath.host_helper as h\n"
        "print([getattr(h, name).__name__ for name in h.__all__])\n"
        "print(h.__file__, [importlib.util.find_spec(f'offpath.{n}') for n in ('dpu_daemon', 'cli')])\n",
        tmp_path,
    )
    assert "'Helper'" in said
    assert str(python.parent.parent) in said
    assert said.endswith("[None, None]\n")


def test_alone_it_carries_a_training_job(python: Path, tmp_path: Path) -> None:
    pytest.importorskip(
        "torch", reason="no torch: ./scripts/test installs the extra `train`, and then nothing is skipped"
    )
    (tmp_path / "ina").mkdir(mode=0o700)
    said = run(
        python,
        "import os, torch, torch.distributed as dist\n"
        "from offpath.host_helper.ina import backend, hook\n"
        "from offpath.host_helper.ina.folder import PageFolder\n"
        "from offpath.host_helper.ina.runtime import Runtime\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "with Runtime.start(job='alone', directory='ina') as runtime:\n"
        "    tensor = torch.ones(3)\n"
        "    runtime.all_reduce(tensor).wait()\n"
        "    print(tensor.tolist(), [state.job for state in PageFolder('ina').poll()])\n"
        "dist.destroy_process_group()\n",
        tmp_path,
    )
    assert said == "[1.0, 1.0, 1.0] ['alone']\n"
