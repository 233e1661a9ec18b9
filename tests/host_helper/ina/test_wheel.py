"""The thin wheel `offpath-host`, alone in a fresh environment: third-party packages are there, nothing else of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

from offpath.bindings.wire import admin
from offpath.cli.admin_client import AdminClient

from ...support.cluster import TIMEOUT, Cluster
from ...support.clusters import Make, make_cluster
from ...support.optional import TORCH
from ...support.processes import until

__all__ = ["make_cluster"]
pytestmark = pytest.mark.not_fast("the packages of others are in another environment")
ROOT = Path(__file__).resolve().parents[3]
MOST_BYTES = 700_000
ENTRY = "import sys; from offpath.cli.host import main; sys.exit(main())"


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


def alone(folder: Path) -> dict[str, str]:
    """The environment of a process that finds no other install of ours."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL"))}
    return environment | {"PYTHONPATH": sysconfig.get_paths()["purelib"], "XDG_RUNTIME_DIR": str(folder)}


def run(python: Path, code: str, folder: Path) -> str:
    """The paths of PYTHONPATH are no site directories: what an editable install left there is not read."""
    done = subprocess.run(
        [str(python), "-c", code], cwd=folder, env=alone(folder), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_thin(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info" not in name]
    assert wheel.stat().st_size < MOST_BYTES
    parts = {name.split("/")[1] for name in names}
    assert parts == {"bindings", "cli", "host_helper", "sched"}
    assert not [name for name in names if name.startswith("offpath/bindings/engines/")]
    assert not {f"offpath/bindings/{name}" for name in ("wire/collab.py", "wire/work_admin.py")} & set(names)
    assert not [name for name in names if name.startswith("offpath/host_helper/collab/")]
    assert {name for name in names if name.startswith("offpath/sched/") and "/protocol/" not in name} == {
        f"offpath/sched/{name}"
        for name in (
            "__init__.py",
            "py.typed",
            "errors.py",
            "gpu/__init__.py",
            "gpu/rightsizing.py",
            "ina/__init__.py",
            "ina/decision.py",
            "ina/patterns.py",
        )
    }
    assert "offpath/bindings/data/mig_profiles.json" in names


def test_alone_it_has_the_helper_and_the_requester_and_not_the_daemon(python: Path, tmp_path: Path) -> None:
    said = run(
        python,
        "import importlib.util, offpath.host_helper as h\n"
        "print([getattr(h, name).__name__ for name in h.__all__])\n"
        "print(h.__file__, [importlib.util.find_spec(f'offpath.{n}') for n in ('dpu_daemon',)])\n",
        tmp_path,
    )
    assert "'Helper'" in said
    assert str(python.parent.parent) in said
    assert said.endswith("[None]\n")


def test_each_command_of_hosts_has_its_module(python: Path, tmp_path: Path) -> None:
    said = run(
        python,
        "import importlib\nfrom offpath.cli.host import COMMANDS\n"
        "for module, _ in COMMANDS.values():\n    importlib.import_module(f'offpath.cli.{module}')\n"
        "import offpath.host_helper.gateway.serve\nprint(len(COMMANDS))\n",
        tmp_path,
    )
    assert int(said) > 10


def command(python: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`offpath` as the wheel's entry point starts it."""
    return subprocess.run(
        [str(python), "-c", ENTRY, *words], cwd=folder, env=alone(folder), capture_output=True, text=True, timeout=120
    )


def test_alone_it_has_the_commands_that_the_docs_give_hosts_and_no_other(
    wheel: Path, python: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "offpath = offpath.cli.host:main" in archive.read(name).decode()
    shown = command(python, tmp_path, "--help")
    assert all(word in shown.stdout for word in ("helper", "keys", "doctor", "migd", "mig"))
    assert "daemon run" not in shown.stdout
    assert command(python, tmp_path, "--version").returncode == 0
    made = command(python, tmp_path, "keys", "host-a", "--directory", str(tmp_path))
    assert (made.returncode, (tmp_path / "host-a.key").stat().st_mode & 0o777) == (0, 0o600), made.stderr
    looked = command(python, tmp_path, "doctor", "--json", "--runtime-dir", str(tmp_path))
    found = {(each["code"], each["severity"]) for each in json.loads(looked.stdout)}
    assert looked.returncode == 0, looked.stderr
    assert {("kernel", "ok"), ("package", "ok"), ("daemon", "note")} <= found
    assert command(python, tmp_path, "daemon", "run").returncode == 2
    shown = command(python, tmp_path, "mig", "show", "--runtime-dir", str(tmp_path))
    assert (shown.returncode, shown.stderr.count("\n")) == (69, 1), shown.stderr
    refused = command(python, tmp_path, "migd", "run", "--gpu", "all=cut", "--runtime-dir", str(tmp_path))
    assert (refused.returncode, refused.stderr.count("\n")) == (78, 1), refused.stderr


def test_alone_its_helper_serves_a_daemon_of_the_whole_install(
    make_cluster: Make, python: Path, tmp_path: Path
) -> None:
    cluster = make_cluster({"ada": {}})
    (tmp_path / "serve.py").write_text(
        "from offpath.host_helper import Helper\nhelper = Helper()\n"
        "@helper.kernel('echo', demand=14)\ndef echo(array):\n    return array\n"
    )
    words = ["helper", "run", "serve.py", "--emulate", "A100-40GB", "--runtime-dir", str(cluster.run_folder)]
    helper = subprocess.Popen([str(python), "-c", ENTRY, *words], cwd=tmp_path, env=alone(tmp_path))
    try:
        until(lambda: _is_served(cluster))
        with cluster.connect("ada") as ada:
            assert ada.submit("echo", [np.arange(3)], timeout=TIMEOUT).array.tolist() == [0, 1, 2]
        looked = command(python, tmp_path, "doctor", "--json", "--runtime-dir", str(cluster.run_folder))
        daemon = next(each for each in json.loads(looked.stdout) if each["code"] == "daemon")
        assert daemon["severity"] == "ok"
        helper.terminate()
        assert helper.wait(TIMEOUT) == 0
    finally:
        helper.kill()
        helper.wait(TIMEOUT)


def _is_served(cluster: Cluster) -> bool:
    with AdminClient(str(cluster.run_folder)) as client:
        return client.query(admin.StatusRequest(), admin.Status).has_helper


def test_alone_it_carries_a_training_job(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason=TORCH)
    (tmp_path / "ina").mkdir(mode=0o700)
    said = run(
        python,
        "import os, torch, torch.distributed as dist\n"
        "from offpath.host_helper.ina import backend, hook\n"
        "from offpath.host_helper.ina.folder import RankFileFolder\n"
        "from offpath.host_helper.ina.runtime import Runtime\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "with Runtime.start(job='alone', directory='ina') as runtime:\n"
        "    tensor = torch.ones(3)\n"
        "    runtime.all_reduce(tensor).wait()\n"
        "    print(tensor.tolist(), [state.job for state in RankFileFolder('ina').poll()])\n"
        "dist.destroy_process_group()\n",
        tmp_path,
    )
    assert said == "[1.0, 1.0, 1.0] ['alone']\n"
