"""The helper's side of a reload: what is executed anew, the trial in a process of its own, the socket."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from offpath.bindings.errors import ControlError, OffpathError
from offpath.host_helper import Helper
from offpath.host_helper.helper_file import load_helper, reload_helper
from offpath.host_helper.kernels import KernelTable
from offpath.host_helper.reload import Reloader
from offpath.host_helper.reload_socket import (
    HelperUnreachable,
    Reloaded,
    ReloadRefused,
    file_name,
    listen,
    read_request,
    request_reload,
)

from ..support.processes import BOUND_S


def table(*names: str) -> Helper:
    made = Helper()
    for name in names:
        made.kernel(name, demand=14)(lambda array: array)
    return made


@contextmanager
def reloading(
    folder: Path, load: Callable[[], KernelTable], **options: Any
) -> Iterator[tuple[Helper, Reloader, list[str]]]:
    """A helper with a kernel "one", and what it logs."""
    helper, lines = table("one"), list[str]()
    made = Reloader(helper, load, dict, listener=listen("helper", str(folder)), log_line=lines.append, **options)
    try:
        yield helper, made, lines
    finally:
        made.close()


def serve(reloader: Reloader, until: Callable[[], bool]) -> None:
    """As the supervisor does without a daemon."""
    end = time.monotonic() + BOUND_S
    while not until():
        assert time.monotonic() < end, "nothing happens"
        select.select([reloader.fileno()], [], [], min(0.05, reloader.pause_s or 0.05))
        if reloader.poll(lambda: None):
            reloader.not_joined()


def asked(folder: Path, reloader: Reloader) -> Reloaded | OffpathError:
    """What `offpath helper reload` gets."""
    got: list[Reloaded | OffpathError] = []

    def ask() -> None:
        try:
            got.append(request_reload("helper", str(folder), BOUND_S))
        except OffpathError as fault:
            got.append(fault)

    asking = threading.Thread(target=ask)
    asking.start()
    serve(reloader, lambda: bool(got))
    asking.join()
    return got[0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    return tmp_path


# -- the file ----------------------------------------------------------------------------------------------------------
SERVE = """
from offpath.host_helper import Helper
import part, pack.inner, site_packages_like
helper = Helper()
@helper.kernel(part.NAME, demand=14)
def kernel(array):
    return array
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "serve.py").write_text(SERVE)
    (tmp_path / "part.py").write_text('NAME = "one"')
    (tmp_path / "site_packages_like.py").write_text("")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "inner.py").write_text("")
    path = list(sys.path)
    yield str(tmp_path / "serve.py")
    sys.path[:] = path
    for name in ("part", "pack", "pack.inner", "site_packages_like", "fresh"):
        sys.modules.pop(name, None)


def test_modules_beside_the_file_are_executed_anew_and_others_are_not(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also within a second, and with the same size: no cached bytecode is taken for the new source."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # an environment may have it otherwise
    assert list(load_helper(file).kernels) == ["one"]
    inner, ours = sys.modules["pack.inner"], sys.modules["offpath.host_helper.kernels"]
    for name in ("two", "six", "ten"):
        (tmp_path / "part.py").write_text(f'NAME = "{name}"')
        assert list(reload_helper(file).kernels) == [name]
    assert sys.modules["pack.inner"] is not inner
    assert sys.modules["offpath.host_helper.kernels"] is ours
    assert sys.path.count(str(tmp_path)) == 1


def test_installed_packages_are_left_alone(file: str, tmp_path: Path) -> None:
    """An environment may be in the file's folder."""
    load_helper(file)
    installed = tmp_path / "env" / "site-packages" / "fresh.py"
    installed.parent.mkdir(parents=True)
    installed.write_text("")
    sys.path.insert(0, str(installed.parent))
    import fresh  # type: ignore[import-not-found]

    reload_helper(file)
    assert sys.modules["fresh"] is fresh


def test_what_fails_leaves_the_modules_as_they_were(file: str, tmp_path: Path) -> None:
    load_helper(file)
    before = sys.modules["part"], sys.modules["pack.inner"]
    (tmp_path / "part.py").write_text("1 / 0")
    with pytest.raises(OffpathError, match="cannot be loaded: ZeroDivisionError"):
        reload_helper(file)
    assert (sys.modules["part"], sys.modules["pack.inner"]) == before


# -- the trial ---------------------------------------------------------------------------------------------------------
def test_a_reload_replaces_the_table_and_says_what_changed(folder: Path) -> None:
    with reloading(folder, lambda: table("one", "two")) as (helper, reloader, lines):
        got = asked(folder, reloader)
        assert got == Reloaded(revision=1, added=["two"], replaced=["one"], removed=[], is_joined=False)
        assert list(helper.kernels) == ["one", "two"]
        assert lines == ["reloaded, revision 1: added two; replaced one"]


def test_a_trial_that_does_not_end_is_ended(folder: Path) -> None:
    def endless() -> KernelTable:
        time.sleep(3 * BOUND_S)
        return table("two")

    with reloading(folder, endless, trial_s=0.2) as (helper, reloader, _):
        got = asked(folder, reloader)
        assert isinstance(got, ReloadRefused)
        assert "took longer than 0.2 s" in str(got)
        assert list(helper.kernels) == ["one"]


def test_a_file_that_only_its_trial_could_load_changes_nothing(folder: Path) -> None:
    ours = os.getpid()

    def load() -> KernelTable:
        if os.getpid() == ours:
            raise KeyError("second time")
        return table("two")

    with reloading(folder, load) as (helper, reloader, _):
        got = asked(folder, reloader)
        assert str(got) == "file: the file cannot be served: KeyError: 'second time'"
        assert (list(helper.kernels), reloader.revision) == (["one"], 0)


def test_a_file_that_initialises_cuda_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offpath.host_helper.reload.is_initialised", lambda: True)
    with reloading(folder, lambda: table("two")) as (helper, reloader, _):
        got = asked(folder, reloader)
        assert "initialises CUDA" in str(got)
        assert list(helper.kernels) == ["one"]


def test_two_reloads_at_a_time_are_one_too_many(folder: Path) -> None:
    def waits() -> KernelTable:
        while not (folder / "go").exists():
            time.sleep(0.01)
        return table("two")

    with reloading(folder, waits) as (_, reloader, _):
        reloader.request()
        reloader.poll(lambda: None)
        assert str(asked(folder, reloader)).startswith("busy: ")
        (folder / "go").touch()
        serve(reloader, lambda: reloader.revision == 1)


def test_a_helper_that_ends_ends_its_trial_and_says_so(folder: Path) -> None:
    def endless() -> KernelTable:
        time.sleep(3 * BOUND_S)
        return table("two")

    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with peer, reloading(folder, endless) as (_, reloader, _):
        peer.settimeout(BOUND_S)
        peer.connect(str(folder / file_name("helper")))
        peer.send(b'{"kind":"reload"}')
        while reloader.pause_s is None:
            reloader.poll(lambda: None)
        reloader.close()
        assert b'"ends"' in peer.recv(4096)
    assert not (folder / file_name("helper")).exists()


# -- the socket --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b"\xff", b'{"kind":"reload","more":1}', b'{"kind":"reload","kind":"reload"}', b"[" * 4000]
)
def test_what_is_no_request_is_refused(folder: Path, body: bytes) -> None:
    with pytest.raises(ControlError):
        read_request(body)
    with reloading(folder, lambda: table("two")) as (helper, reloader, _):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.settimeout(BOUND_S)
            peer.connect(str(folder / file_name("helper")))
            peer.send(body)
            replies: list[bytes] = []
            reader = threading.Thread(target=lambda: replies.append(peer.recv(4096)))
            reader.start()
            serve(reloader, lambda: bool(replies))
            reader.join()
        assert b'"message"' in replies[0]
        assert list(helper.kernels) == ["one"]


def test_idle_connections_are_bounded_and_those_that_leave_are_forgotten(folder: Path) -> None:
    with reloading(folder, lambda: table("two")) as (_, reloader, _):
        peers = []
        for _ in range(9):
            peers.append(peer := socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            peer.connect(str(folder / file_name("helper")))
            reloader.poll(lambda: None)
        peers[-1].settimeout(BOUND_S)
        assert peers[-1].recv(1) == b"", "the ninth is not served"
        for peer in peers:
            peer.close()
        serve(reloader, lambda: not reloader._peers)
        assert isinstance(asked(folder, reloader), Reloaded)


def test_without_a_helper_the_command_says_where_it_looked(folder: Path) -> None:
    with pytest.raises(HelperUnreachable, match=r"no helper 'other' at .*helper-other\.sock: No such file"):
        request_reload("other", str(folder), 1.0)


def test_a_folder_that_is_not_there_leaves_only_the_signal(folder: Path) -> None:
    assert listen("helper", str(folder / "nowhere")) is None
