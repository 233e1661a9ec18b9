"""A rank's end of a tree against a switch that the test speaks for."""

from __future__ import annotations

import socket
from pathlib import Path

from offpath.bindings.ina import frames
from offpath.bindings.ina.connection import SwitchFabric
from offpath.bindings.ina.port import TreeAttached, TreeLost, TreeSession
from offpath.bindings.ina.rate_limiter import RateLimiter

from ...support.processes import BOUND_S

NBYTES = 8 << 20
REASON = frames.Reason.MISMATCH


def attached(folder: Path) -> tuple[TreeSession, socket.socket]:
    """A rank, and the switch's end of its connection."""
    path = str(folder / "switch.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        rank = SwitchFabric(RateLimiter()).attach(
            f"unix://{path}", job="job", incarnation=1, stamp=1, rank=0, ranks=2, token="token"
        )
        switch, _ = listener.accept()
    switch.sendall(frames.pack(frames.Attached(0)))
    assert rank.poll(BOUND_S) == TreeAttached()
    return rank, switch


def test_why_a_tree_is_lost_is_read_though_the_switch_takes_no_more(tmp_path: Path) -> None:
    """It says why and hangs up, with what the rank sent unread: the rank's next write fails before it has read that."""
    rank, switch = attached(tmp_path)
    rank.start(0, "fp32", memoryview(bytes(NBYTES)), memoryview(bytearray(NBYTES)))
    switch.sendall(frames.pack(frames.Abort(1, REASON)))
    switch.close()
    assert rank.poll(BOUND_S) == TreeLost(REASON.name.lower())
    rank.close()


def test_a_switch_that_hangs_up_without_a_word_has_hung_up(tmp_path: Path) -> None:
    rank, switch = attached(tmp_path)
    rank.start(0, "fp32", memoryview(bytes(NBYTES)), memoryview(bytearray(NBYTES)))
    switch.close()
    assert rank.poll(BOUND_S) == TreeLost("hung up")
    rank.close()
