"""What kernels do that their authors find ordinary: it is right, or its end says why not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpath.bindings.wire.codes import Status
from offpath.host_helper import Options, Requester, RequestFailed

from ..support.cluster import TIMEOUT, Cluster
from ..support.optional import TORCH
from ..support.processes import until

FILE = Path(__file__).parents[1] / "support" / "served.py"


class Served:
    """A daemon, and the helper's command with the file."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster({"ada": {}, "bob": {}}, leasing={"keep_warm_ms": 60_000})
        command = [sys.executable, "-P", "-m", "offpath.cli.main", "helper", "run", str(FILE)]
        command += ["--runtime-dir", str(self.cluster.run_folder), "--emulate", "A100-40GB"]
        self._log = folder / "log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            until(lambda: "offpath helper: " in self.log or self._process.poll() is not None)
            assert self._process.poll() is None, self.log
        except BaseException:
            self.kill()
            raise

    @property
    def log(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        """With the processes of the file's pool, which wait for work when the helper is gone."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.cluster.kill()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("served"))
    yield made
    made.kill()


@pytest.fixture
def ada(served: Served) -> Iterator[Requester]:
    with served.cluster.connect("ada") as requester:
        yield requester


def ask(requester: Requester, kernel: str, *arrays: Any, **options: Any) -> Any:
    return requester.submit(kernel, arrays, timeout=TIMEOUT, options=Options(**options)).array


def fails(requester: Requester, kernel: str, *arrays: Any) -> str:
    with pytest.raises(RequestFailed) as failed:
        ask(requester, kernel, *arrays)
    assert failed.value.status is Status.FAILED
    return failed.value.detail


# -- arguments -----------------------------------------------------------------------------------------------------
def test_what_a_kernel_changes_of_an_argument_itself_ends_with_the_request(ada: Requester) -> None:
    for _ in range(3):
        assert ask(ada, "flatten", np.zeros((2, 3))).tolist() == [2, 3]


def test_arguments_may_be_written_and_each_request_has_its_own_bytes(ada: Requester) -> None:
    for _ in range(3):
        assert ask(ada, "center", np.array([1.0, 2.0, 6.0])).tolist() == [-2, -1, 3]


def test_a_sequences_kernel_may_keep_its_arguments(ada: Requester) -> None:
    chunks = [np.full(2, value, np.int64) for value in (1, 2, 3, 4)]
    windows = [
        ask(ada, "window", chunk, sequence_id=9, sequence_start=not n, sequence_end=n == 3).tolist()
        for n, chunk in enumerate(chunks)
    ]
    assert windows == [[1, 1], [1, 1, 2, 2], [2, 2, 3, 3], [3, 3, 4, 4]]


def test_a_kernel_that_declares_that_it_keeps_arguments_gets_copies(ada: Requester) -> None:
    inputs = [np.array([1.0]), np.array([1.0]), np.array([2.0]), np.array([2.0])]
    assert [bool(ask(ada, "same-of-copies", each)[0]) for each in inputs] == [False, True, False, True]


@pytest.mark.parametrize("kernel", ["same", "view"])
def test_a_kernel_that_keeps_an_argument_nevertheless_is_told(ada: Requester, kernel: str) -> None:
    for value in (1.0, 2.0):
        said = fails(ada, kernel, np.full(4, value))
        assert f"kernel {kernel} keeps an argument" in said
        assert "keeps=True" in said
    assert ask(ada, "center", np.array([1.0, 3.0])).tolist() == [-1, 1], "others go on"


def test_a_kernel_that_kept_an_argument_once_gives_no_stale_answer_afterwards(ada: Requester) -> None:
    """A cache of the first input: what it kept shows the bytes of later requests."""
    for value in (1.0, 2.0, 2.0, 3.0):
        assert "kernel first-input keeps an argument" in fails(ada, "first-input", np.full(4, value))


def test_an_argument_in_a_cycle_that_nobody_has_is_not_kept(ada: Requester) -> None:
    for value in (1.0, 2.0, 3.0):
        assert ask(ada, "closure", np.full(3, value)) == 3 * value


@pytest.mark.parametrize("array", [np.ones(3, np.float32), np.ones((2, 3)), np.ones((2, 4), np.float32)])
def test_arguments_that_the_declaration_does_not_have_are_refused_on_the_native_way_too(
    ada: Requester, array: Any
) -> None:
    assert ask(ada, "declared", np.ones((2, 3), np.float32)).shape == (2, 3)
    said = fails(ada, "declared", array)
    assert said == f"TypeError: kernel declared takes x: float32 [-1, 3]; got {array.dtype} {list(array.shape)}"
    assert "takes x: float32 [-1, 3]; got" in fails(ada, "declared", *[np.ones((1, 3), np.float32)] * 2)


def test_a_sequence_goes_on_after_a_request_that_does_not_fit_the_declaration(ada: Requester) -> None:
    good, bad = np.ones(1, np.float32), np.ones(2, np.float32)
    with pytest.raises(RequestFailed, match=r"takes x: float32 \[1\]; got float32 \[2\]"):
        ask(ada, "counted", bad, sequence_id=5, sequence_start=True)
    assert ask(ada, "counted", good, sequence_id=5) == 1
    assert ask(ada, "counted", good, sequence_id=5, sequence_end=True) == 2


def test_torch_kernels_get_a_new_tensor_for_each_request(ada: Requester) -> None:
    pytest.importorskip("torch", reason=TORCH)
    for _ in range(3):
        assert ask(ada, "gradient", np.array([1.0, 1.0])).tolist() == [2, 2]
        assert ask(ada, "unsqueeze", np.zeros((3, 4))).tolist() == [3, 4]
    assert "kernel kept-tensor keeps an argument" in fails(ada, "kept-tensor", np.ones(4))
    assert ask(ada, "gradient", np.array([3.0])).tolist() == [6]


# -- processes and threads -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", [1, 2, 3], ids=["returns", "raises", "exits"])
def test_a_child_that_a_kernel_forks_never_answers(ada: Requester, how: int) -> None:
    lease = ada.submit("flatten", [np.zeros(1)], timeout=TIMEOUT).lease
    for _ in range(2):
        assert ask(ada, "fork", np.array([how, 5])).tolist() == [10 * how, 50]
    assert ada.submit("flatten", [np.zeros(1)], timeout=TIMEOUT).lease == lease, "the worker is the same"


@pytest.mark.parametrize(
    ("how", "said"), [(1, "SystemExit: 3"), (2, "KeyboardInterrupt: stop"), (3, "CancelledError: gone")]
)
def test_a_kernel_that_ends_its_process_fails_with_the_reason(
    ada: Requester, served: Served, how: int, said: str
) -> None:
    assert fails(ada, "end", np.array([how])) == said
    assert ask(ada, "end", np.array([0])).tolist() == [0]
    assert said in served.log


def test_workers_draw_different_numbers_unless_the_file_chose_a_seed(served: Served) -> None:
    with served.cluster.connect("ada") as ada, served.cluster.connect("bob") as bob:
        first, second = (ask(each, "draw", np.zeros(1)) for each in (ada, bob))
        pid, of_numpy, drawn, chosen = zip(first, second, strict=True)
        assert pid[0] != pid[1]
        assert of_numpy[0] != of_numpy[1]
        assert drawn[0] != drawn[1]
        assert chosen[0] == chosen[1] == np.random.default_rng(7).random()


def test_workers_draw_different_numbers_with_torch(served: Served) -> None:
    pytest.importorskip("torch", reason=TORCH)
    with served.cluster.connect("ada") as ada, served.cluster.connect("bob") as bob:
        assert ask(ada, "torch-draw", np.zeros(1)) != ask(bob, "torch-draw", np.zeros(1))


def test_a_pool_of_threads_of_the_file_works_in_a_worker(ada: Requester) -> None:
    for _ in range(2):
        assert ask(ada, "pool", np.arange(4)).tolist() == [0, 2, 4, 6]


def test_a_pool_of_processes_works_if_it_is_the_workers_and_else_says_why(ada: Requester) -> None:
    assert ask(ada, "processes", np.arange(4)).tolist() == [0, 2, 4, 6]
    said = fails(ada, "former-processes", np.arange(4))
    assert said.startswith("BrokenProcessPool: its processes are of the process that this worker was forked from")


def test_threads_that_workers_will_not_have_are_named(served: Served) -> None:
    (line,) = [line for line in served.log.splitlines() if "will not have its threads" in line]
    assert all(each in line for each in ("ThreadPoolExecutor-0_0", "watcher", "@helper.lane_opened"))


def test_classes_of_the_file_are_found_by_pickle_also_as_a_scripts(ada: Requester) -> None:
    assert ask(ada, "pickled", np.zeros(1)).tolist() == [4, 4]


# -- the file ------------------------------------------------------------------------------------------------------
def test_a_file_that_exits_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "exits.py"
    file.write_text("import sys\nsys.exit(0)\n")
    command = [sys.executable, "-P", "-m", "offpath.cli.main", "helper", "run", str(file), "--emulate", "A100-40GB"]
    environment = {**os.environ, "OFFPATH_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT, env=environment)
    assert done.returncode == 1
    assert f"{file} cannot be loaded: SystemExit: 0" in done.stderr
