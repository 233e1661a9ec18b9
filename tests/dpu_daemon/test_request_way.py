"""The files that a request passes from its doorbell to its placement: as docs/architecture.md lists them, no more."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from offpath.bindings import twins
from offpath.bindings.loopback import fabric as fabric_module
from offpath.bindings.loopback.channel import LoopbackChannelListener
from offpath.bindings.loopback.fabric import LoopbackFabricSession
from offpath.bindings.memory import slots as slots_module
from offpath.bindings.ports import IMM_SUBMIT, immediate
from offpath.bindings.sockets import receive_with_fds
from offpath.bindings.wire.header import DTYPE_CODES, Tensor, pack_request, pack_tensors
from offpath.dpu_daemon.config import DaemonConfig
from offpath.dpu_daemon.daemon import Daemon
from offpath.sched.gpu.policy import Placement
from offpath.sched.jobs import events

from ..sched.gpus import a100
from ..support.sources import ROOT

PAYLOAD = 4096
FAR_NS = 2_000_000_000
"""No timer of an idle daemon is as near, but those that were armed for its first request."""


def listed() -> tuple[list[str], set[str]]:
    """The page's files on the way, in order, and those beside it."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = page.split("### Files from the doorbell to the placement\n")[1].split("\n## ")[0]
    table, beside = section.split("These files use")
    beside = beside.split("\n\n")[0]
    return re.findall(r"^\| `([a-z_/]+\.py)`", table, re.M), set(re.findall(r"`([a-z_/]+\.py)`", beside))


def source(frame: FrameType) -> str:
    """Relative to the namespace; empty: not of offpath."""
    found = re.fullmatch(rf"{re.escape(str(ROOT))}/\w+/offpath/(.+)", frame.f_code.co_filename)
    return found[1] if found else ""


def is_of_doorbell(frame: FrameType | None) -> bool:
    """Whether the session's doorbell is being read: timers of a slow machine may fire before."""
    reader = "_readable", "dpu_daemon/requests/sessions.py"
    while frame is not None and (frame.f_code.co_name, source(frame)) != reader:
        frame = frame.f_back
    return frame is not None


class Way:
    """Records each file in which a function is called, in the order of the first calls, from the doorbell until the
    policy has placed."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.calling: list[str] = []
        """Whose functions are on the stack when the policy places: the outermost first."""
        self.placed: object = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (name := source(frame)) and name not in self.files and is_of_doorbell(frame):
            self.files.append(name)

    def around(self, place: Any) -> Any:
        def placing(*arguments: Any) -> Any:
            self.placed = place(*arguments)
            sys.setprofile(None)
            above: FrameType | None = sys._getframe(1)
            while above is not None:
                if name := source(above):
                    self.calling.insert(0, name)
                above = above.f_back
            return self.placed

        return placing


@pytest.fixture
def requester(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session's fabric, what writes requests into its slots, and its doorbell. In Python: C's functions have no
    file."""
    for module, names in ((fabric_module, ("end_of", "receive", "ring")), (slots_module, ("take_request",))):
        for name in names:
            monkeypatch.setattr(module, name, getattr(twins, name))
    fabric = LoopbackFabricSession(2, PAYLOAD, PAYLOAD)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        fabric.hand_over(theirs)
        _, (slots, answers, bell), _ = receive_with_fds(ours, 64, 3)
    os.close(answers)
    one = pack_tensors([Tensor(DTYPE_CODES["float64"], (1,), 0, 8)])
    with socket.socket(fileno=bell) as doorbell:

        def submit(slot: int) -> None:
            header = pack_request(request_id=slot + 1, kernel_id=9, payload_bytes=8, tensors=one)
            os.pwrite(slots, header, slot * (os.fstat(slots).st_size // 2))
            doorbell.send(immediate(IMM_SUBMIT, slot).to_bytes(4, "little"))

        yield fabric, submit
    os.close(slots)


@pytest.mark.not_fast("it records the calls of interpreted functions")
async def test_a_request_passes_the_listed_files_and_no_others(
    tmp_path: Path, requester: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric, submit = requester
    channel = LoopbackChannelListener(str(tmp_path / "host"), frozenset({os.getuid()}))
    daemon = Daemon(DaemonConfig.model_validate({"tenant": [{"name": "ada"}]}), channel)
    loop, book, way = daemon.requests.book_loop, daemon.requests.book, Way()
    try:
        loop.dispatch(events.HelperJoined(1, (a100(),), (events.Kernel(9, 14),)))
        daemon.requests.sessions.opened(1, "ada", fabric)
        submit(0)
        while not book.ledger.leases:
            await asyncio.sleep(0.001)
        ((number, lease),) = book.ledger.leases.items()
        for lane in range(lease.view.lanes):
            loop.dispatch(events.LaneReady(number, lane, lease.generation))
        while (due_ns := book.next_deadline_ns()) is not None and due_ns < daemon.requests.now_ns() + FAR_NS:
            await asyncio.sleep(0.001)  # no timer fires with the next request
        monkeypatch.setattr(book.ledger.policy, "place", way.around(book.ledger.policy.place))
        submit(1)
        sys.setprofile(way)
        while way.placed is None:
            await asyncio.sleep(0.001)
    finally:
        sys.setprofile(None)
        daemon.close()
    on_the_way, beside = listed()
    assert isinstance(way.placed, Placement)
    assert [name for name in way.files if name in on_the_way] == on_the_way
    assert set(way.files) - set(on_the_way) == beside
    assert {name for name in way.calling if "_request_way" not in name} <= set(on_the_way)
    assert len(on_the_way) <= 8
