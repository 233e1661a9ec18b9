"""./scripts/node-vm, a virtual machine with systemd as its first process, and what offpath's packages do in it.

A short form of the acceptance is the slow size. The whole one takes a quarter of an hour and runs in `--full`, as the
cluster does. Where no image can be had (no qemu, no network, no root) they are skipped, and say why;
OFFPATH_NODE_VM=1 forbids that.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .support import pages
from .support.cluster import free_port

ROOT = Path(__file__).resolve().parent.parent
BOUND_S = 5400.0
MUST_RUN = os.environ.get("OFFPATH_NODE_VM") == "1"
CAN_GET_QEMU = shutil.which("qemu-system-x86_64") or (os.geteuid() == 0 and shutil.which("apt-get"))
STEPS = (
    "install", "configure", "enable, start", "20 requests", "kill -9 under load", "watchdog", "reload, good and bad",
    "journal's fields", "sandboxes", "20 requests over rxe", "upgrade, other journal", "upgrade the daemon",
    "upgrade the helper", "after the reboot", "remove", "purge",
)  # fmt: skip
SHORT_STEPS = (
    "install", "configure", "enable, start", "20 requests", "kill -9 under load", "watchdog", "reload, good and bad",
    "remove", "purge",
)  # fmt: skip
TORCH = (
    "torch", "torchgen", "functorch", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec",
    "setuptools", "typing_extensions.py",
)  # fmt: skip
"""torch, and what it imports."""
CLUSTER = {"controller": 1, "h1": 2, "h2": 3}
"""The machines of tests/node/cluster, and the last numbers of their addresses."""


def node_vm(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it with ``folder`` for its temporary files; it must be as empty afterwards as before."""
    done = subprocess.run(
        [ROOT / "scripts" / "node-vm", *words], env={**os.environ, "TMPDIR": str(folder)}, capture_output=True,
        text=True, check=False, timeout=BOUND_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert list(folder.iterdir()) == []
    return done


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The first boot makes the image."""
    if not MUST_RUN and not CAN_GET_QEMU:
        pytest.skip("no qemu-system-x86_64, and only root can install it")
    done = node_vm(tmp_path_factory.mktemp("first"), "amd64", "--", "true")
    if done.returncode == 125 and not MUST_RUN:
        pytest.skip(f"no image, or qemu does not run: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr


needs_image = pytest.mark.usefixtures("image")


@pytest.mark.parametrize(
    "words",
    [
        (), ("amd64",), ("amd64", "--"), ("--", "true"), ("sparc", "--", "true"), ("--timeout",),
        ("--network", "80:1", "amd64", "--", "true"), ("--network", "8000:251", "amd64", "--", "true"),
        ("--network", "8000", "amd64", "--", "true"), ("--pages",), ("--pages", "16k", "amd64", "--", "true"),
        ("--memory", "x", "amd64", "--", "true"), ("--add", "/nowhere/x.deb", "amd64", "--", "true"),
        ("--nonsense", "amd64", "--", "true"),
    ],
)  # fmt: skip
def test_a_call_that_makes_no_sense_is_told_how_to_make_one(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = node_vm(tmp_path, *words)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("./scripts/node-vm ")


@pytest.mark.full
@needs_image
def test_output_and_exit_code_come_back_from_a_machine_that_systemd_runs(tmp_path: Path) -> None:
    (tmp_path.parent / "added").write_text("three\n")
    words = ["bash", "-c", "ps -o comm= -p 1; echo two >&2; cat /packages/added; pwd; exit 3"]
    done = node_vm(tmp_path, "--add", str(tmp_path.parent / "added"), "amd64", "--", *words)
    assert (done.returncode, done.stdout) == (3, "systemd\nthree\n/offpath\n")
    assert "\ntwo\n" in done.stderr


@pytest.mark.full
@needs_image
def test_a_machine_that_reboots_goes_on_with_the_command(tmp_path: Path) -> None:
    words = ["bash", "-c", "echo $OFFPATH_VM_BOOT; ((OFFPATH_VM_BOOT > 1)) || { systemctl reboot; sleep 600; }"]
    done = node_vm(tmp_path, "amd64", "--", *words)
    assert (done.returncode, done.stdout) == (0, "1\n2\n")


def packages(out: Path, arch: str, *words: str) -> list[str]:
    """The words that add them to a machine; ``words`` are of ./scripts/build-deb."""
    command = [str(ROOT / "scripts/build-deb"), "--arch", arch, *words, "--no-lintian", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BOUND_S)
    assert done.returncode == 0, done.stderr
    return [word for file in sorted(out.glob(f"*_{arch}.deb")) for word in ("--add", str(file))]


@needs_image
def test_a_node_of_each_architecture_is_installed_killed_reloaded_and_purged(tmp_path: Path) -> None:
    """Both at once, on a core each."""
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda arch: short_acceptance(tmp_path / arch, arch), ("amd64", "arm64")))
    for done in both:
        assert done.returncode == 0, done.stdout + done.stderr
        assert steps(done.stdout) == list(SHORT_STEPS)


def short_acceptance(folder: Path, arch: str) -> subprocess.CompletedProcess[str]:
    (guest := folder / "guest").mkdir(parents=True)
    added = packages(folder, arch)
    return node_vm(guest, "--timeout", "2400", *added, arch, "--", "./tests/node/acceptance", "--short")


@pytest.mark.full
@needs_image
@pytest.mark.parametrize("arch", ["amd64", "arm64"])
def test_the_packages_are_installed_killed_upgraded_rebooted_and_purged(tmp_path: Path, arch: str) -> None:
    packages(tmp_path, arch)
    added = packages(tmp_path, arch, "--suffix", "+next")
    folder = tmp_path / "guest"
    folder.mkdir()
    done = node_vm(folder, "--timeout", "3600", *added, arch, "--", "./tests/node/acceptance")
    assert done.returncode == 0, done.stdout + done.stderr
    assert steps(done.stdout) == list(STEPS)


def steps(said: str) -> list[str]:
    """The steps of the acceptance that passed."""
    return [line[3:31].strip() for line in said.splitlines() if line.startswith("ok ")]


@pytest.mark.full
@needs_image
def test_readme_can_be_followed_on_a_bare_machine(tmp_path: Path) -> None:
    """Its section "Install it on a node", to the letter, with the files of "Use it"."""
    text = (ROOT / "README.md").read_text("utf-8")
    use, node = (
        pages.steps(text.split(f"## {title}\n")[1].split("\n## ")[0]) for title in ("Use it", "Install it on a node")
    )
    install, emulate, start = node
    files = {step.file: step.code for step in use if step.file}
    lines = ["set -eu", "cd /packages", install.command, saved("/etc/offpath/serve.py", files["serve.py"])]
    lines += [saved(emulate.file, emulate.code), saved("ask.py", files["ask.py"]), start.command]
    (tmp_path / "follow.sh").write_text("\n".join(lines))
    (folder := tmp_path / "guest").mkdir()
    added = [*packages(tmp_path, "amd64"), "--add", str(tmp_path / "follow.sh")]
    done = node_vm(folder, *added, "amd64", "--", "bash", "/packages/follow.sh")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[64. 64. 64. 64.]" in done.stdout
    assert str([64.0 * n for n in range(8)]) in done.stdout
    assert "vision" in done.stdout.splitlines()[-1], done.stdout


def saved(file: str, code: str) -> str:
    return f"mkdir -p \"$(dirname {file})\"\ncat > {file} <<'END OF FILE'\n{code}END OF FILE"


# -- a cluster ----------------------------------------------------------------------------------------------------
def torch_folder(made: Path) -> Path:
    """torch's files, without those that only compilers read. Skips: torch is not there, or is of another
    Python than the machines'."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None or sys.version_info[:2] != (3, 11):
        pytest.skip("torch for Python 3.11, which the machines have, is not here")
    site = Path(found.origin).parent.parent
    for name in TORCH:
        if (site / name).is_dir():
            left_out = shutil.ignore_patterns("__pycache__", "include", "*.a", "test", "tests", "*.pyi")
            shutil.copytree(site / name, made / name, ignore=left_out, copy_function=link)
        elif (site / name).exists():
            link(site / name, made / name)
    return made


def link(source: str | Path, target: str | Path) -> None:
    """On another file system: a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.mark.full
@needs_image
def test_three_machines_are_a_cluster_of_a_controller_and_two_nodes_that_train_together(tmp_path: Path) -> None:
    shared, torch = tmp_path / "shared", tmp_path / "torch"
    shared.mkdir()
    torch.mkdir()
    torch_folder(torch)
    added = packages(shared, "amd64")
    for name in CLUSTER:
        command = [sys.executable, "-P", "-m", "offpath.cli.main", "keys", name, "--directory", str(shared)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    added += [
        word for key in sorted(shared.glob("*.key")) + sorted(shared.glob("*.pub")) for word in ("--add", str(key))
    ]
    network = free_port()
    with ThreadPoolExecutor(len(CLUSTER)) as pool:
        ends = {role: pool.submit(one_of_the_cluster, tmp_path, role, network, added, torch) for role in CLUSTER}
    said = {role: end.result() for role, end in ends.items()}
    assert {role: done.returncode for role, done in said.items()} == dict.fromkeys(CLUSTER, 0), "".join(
        f"-- {role}\n{done.stdout}{done.stderr}" for role, done in said.items()
    )
    assert all("second trained" in said[node].stdout for node in ("h1", "h2"))


def one_of_the_cluster(
    folder: Path, role: str, network: int, added: list[str], torch: Path
) -> subprocess.CompletedProcess[str]:
    (own := folder / role).mkdir()
    more = [] if role == "controller" else ["--add", str(torch)]
    network_of = f"{network}:{CLUSTER[role]}"
    words = ["--timeout", "5000", "--network", network_of, *added, *more, "amd64", "--", "./tests/node/cluster", role]
    return node_vm(own, *words)
