"""./scripts/node-vm, a virtual machine with systemd as its first process, and what offpath's packages do in it.

The acceptance takes a quarter of an hour and runs in `--full`. Where no image can be had (no qemu, no network, no root)
it is skipped, and says why; OFFPATH_NODE_VM=1 forbids that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BOUND_S = 5400.0
MUST_RUN = os.environ.get("OFFPATH_NODE_VM") == "1"
CAN_GET_QEMU = shutil.which("qemu-system-x86_64") or (os.geteuid() == 0 and shutil.which("apt-get"))
STEPS = (
    "install", "configure", "enable, start", "20 requests", "kill -9 under load", "watchdog", "reload, good and bad",
    "journal's fields", "sandboxes", "20 requests over rxe", "upgrade, other journal", "upgrade the daemon",
    "upgrade the helper", "after the reboot", "remove", "purge",
)  # fmt: skip
pytestmark = pytest.mark.slow


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
        ("--pages",), ("--pages", "16k", "amd64", "--", "true"),
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


@pytest.mark.full
@needs_image
def test_the_packages_are_installed_killed_upgraded_rebooted_and_purged(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for suffix in ((), ("--suffix", "+next")):
        command = [ROOT / "scripts" / "build-deb", "--arch", "amd64", *suffix, "--out", out]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BOUND_S)
        assert done.returncode == 0, done.stderr
    added = [word for file in sorted(out.glob("*.deb")) for word in ("--add", str(file))]
    folder = tmp_path / "guest"
    folder.mkdir()
    done = node_vm(folder, "--timeout", "3600", *added, "amd64", "--", "./tests/node/acceptance")
    assert done.returncode == 0, done.stdout + done.stderr
    passed = [line[3:31].strip() for line in done.stdout.splitlines() if line.startswith("ok ")]
    assert passed == list(STEPS)
