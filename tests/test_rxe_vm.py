"""./scripts/rxe-vm: whose fault an ending was can be told by its exit code, and nothing is left behind.

One of these tests runs all tests marked rdma in the virtual machine, so that `./scripts/test` has run them too. Where
no image can be had (no qemu, no network, no root) these tests are skipped, and say why; OFFPATH_RXE_VM=1 forbids that.
A tree that cannot be installed in an image is no reason to skip.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .sizes import SIZE

ROOT = Path(__file__).resolve().parent.parent
BOUND_S = 6000.0 if SIZE == "full" else 3600.0  # the first use makes the image
CAN_GET_QEMU = shutil.which("qemu-system-x86_64") or (os.geteuid() == 0 and shutil.which("apt-get"))
LEAST_TESTS = 160
BROKEN_TREE = "offpath: rxe image: the project cannot be installed in it"
MUST_RUN = os.environ.get("OFFPATH_RXE_VM") == "1"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The first boot makes the image."""
    if not MUST_RUN and not CAN_GET_QEMU:
        pytest.skip("no qemu-system-x86_64, and only root can install it")
    done = rxe_vm(tmp_path_factory.mktemp("first"), "--", "true")
    if done.returncode == 125 and not MUST_RUN and BROKEN_TREE not in done.stderr:
        pytest.skip(f"no image, or qemu does not run: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr


needs_image = pytest.mark.usefixtures("image")


def rxe_vm(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it with ``folder`` for its temporary files; it must be as empty afterwards as before."""
    done = subprocess.run(
        [ROOT / "scripts" / "rxe-vm", *words], env={**os.environ, "TMPDIR": str(folder), **environment},
        capture_output=True, text=True, check=False, timeout=BOUND_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert list(folder.iterdir()) == []
    return done


def machines(folder: Path) -> list[int]:
    """Processes with a file of ``folder`` in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@needs_image
def test_the_tests_marked_rdma_pass_in_the_guest(tmp_path: Path) -> None:
    size, timeout_s = (["--full"], "5400") if SIZE == "full" else ([], "3000")
    done = rxe_vm(tmp_path, "--timeout", timeout_s, "--", "./scripts/test", *size, "-x", "-m", "rdma")
    assert done.returncode == 0, done.stdout + done.stderr
    closing = done.stdout.splitlines()[-1]
    assert int(re.findall(r"\b(\d+) passed", closing)[0]) >= LEAST_TESTS, closing
    assert not re.search(r"skipped|failed|error", closing), closing


@needs_image
def test_output_goes_where_the_command_sent_it_and_its_exit_code_comes_back(tmp_path: Path) -> None:
    done = rxe_vm(tmp_path, "--", "bash", "-c", "echo 'one  two'; echo three >&2; pwd >/dev/stdout; exit 3")
    assert (done.returncode, done.stdout) == (3, "one  two\n/offpath\n")
    assert "\nthree\n" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("offpath: the guest returned 3 ")


@pytest.mark.full
@needs_image
def test_words_arrive_as_they_were_given_and_the_tree_here_stays_as_it_is(tmp_path: Path) -> None:
    code = "import pathlib, sys; pathlib.Path('README.md').unlink(); print(sys.argv[1:]); sys.exit(99)"
    words = ["a b", "", "'\"$HOME*", "zwei\nZeilen"]
    done = rxe_vm(tmp_path, "--", "python", "-c", code, *words)
    assert (done.returncode, done.stdout) == (99, f"{words}\n")
    assert (ROOT / "README.md").exists()


@pytest.mark.full
@needs_image
def test_a_guest_that_panics_is_no_command_that_failed(tmp_path: Path) -> None:
    done = rxe_vm(tmp_path, "--", "bash", "-c", "echo c >/proc/sysrq-trigger")
    assert done.returncode == 123
    assert "Kernel panic" in done.stderr
    assert "the guest died" in done.stderr


@pytest.mark.full
@needs_image
def test_a_guest_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    done = rxe_vm(tmp_path, "--timeout", "2", "--", "sleep", "1000")
    assert done.returncode == 124
    assert "--timeout 2 is over" in done.stderr


@needs_image
def test_a_qemu_that_does_not_start_is_no_guest_that_returned(tmp_path: Path) -> None:
    done = rxe_vm(tmp_path, "--memory", "999999999", "--", "true")
    assert done.returncode == 125
    assert "qemu failed with exit code 1" in done.stderr


@needs_image
def test_a_guest_that_does_not_boot_is_started_again_twice(tmp_path: Path) -> None:
    done = rxe_vm(tmp_path, "--", "true", OFFPATH_RXE_BOOT_S="1")
    assert done.returncode == 123
    assert [f"(try {number} of 3)" in done.stderr for number in (1, 2, 3)] == [True, True, True]
    assert machines(tmp_path) == []


@pytest.mark.parametrize("words", [(), ("--",), ("true",), ("--memory", "x", "--", "true"), ("--timeout",)])
def test_a_call_that_makes_no_sense_is_told_how_to_make_one(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = rxe_vm(tmp_path, *words)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("./scripts/rxe-vm ")


@pytest.mark.full
@needs_image
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_call_leaves_no_machine_behind(tmp_path: Path, number: signal.Signals) -> None:
    """A call that is killed outright leaves its folder, and still no machine."""
    command = [ROOT / "scripts" / "rxe-vm", "--", "sleep", "1000"]
    quiet = subprocess.DEVNULL
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        end = time.monotonic() + BOUND_S
        while not machines(tmp_path):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.2)
        process.send_signal(number)
        code = process.wait(60)
    while machines(tmp_path):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert code == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(number, -number)
    assert list(tmp_path.iterdir()) == [] or number is signal.SIGKILL
