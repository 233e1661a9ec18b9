"""What the host channel `comch` is made of: how often it polls, what it sends, and what it hands over to whom."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.channel.session import HEAD_BYTES
from offpath.bindings.doca.mailbox import Mailbox
from offpath.bindings.doca.pace import LONGEST_NS, SHORTEST_NS, SPIN_NS, Pace
from offpath.bindings.doca.pieces import HEARTBEAT, LEAST_BYTES, MOST_BYTES, Assembly, cut
from offpath.bindings.errors import HostMessageError, PeerGone
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES

US = 1000


def test_it_polls_without_a_nap_for_50_us_after_something_moved_then_naps_ever_longer_up_to_1_ms() -> None:
    pace = Pace(0)
    assert [pace.nap_ns(at * US) for at in (0, 20, 49)] == [0, 0, 0]
    naps = [pace.nap_ns(at * US) for at in (50, 100, 200, 400, 800, 1600, 2600)]
    assert naps == [50 * US, 100 * US, 200 * US, 400 * US, 800 * US, 1000 * US, 1000 * US]
    pace.moved(5000 * US)
    assert pace.nap_ns(5049 * US) == 0
    assert pace.nap_ns(5050 * US) == 50 * US
    assert (SPIN_NS, SHORTEST_NS, LONGEST_NS) == (50 * US, 50 * US, 1000 * US)


@given(frame=st.binary(min_size=1, max_size=HEAD_BYTES + MAX_MESSAGE_BYTES), most=st.integers(LEAST_BYTES, MOST_BYTES))
def test_a_frame_comes_out_of_its_pieces_whatever_the_device_takes_at_once(frame: bytes, most: int) -> None:
    assembly = Assembly()
    *first, last = cut(frame, most)
    assert max(map(len, [*first, last])) <= most
    for piece in first:
        assert assembly.add(piece) is None
        assert assembly.add(HEARTBEAT) is None, "it may come between them"
    assert assembly.add(last) == frame
    assert assembly.add(b"\0next") == b"next"


@pytest.mark.parametrize(
    ("pieces", "code"),
    [
        ([b""], "frame"), ([b"\0"], "frame"), ([b"\1"], "frame"), ([b"\2x"], "frame"), ([b"\3abc"], "frame"),
        ([b"\0" + bytes(4097)], "too_long"), ([b"\1" + bytes(4000), b"\0" + bytes(97)], "too_long"),
        ([b"\1" + bytes(2048), b"\1" + bytes(2048), b"\1x"], "too_long"),
    ],
)  # fmt: skip
def test_what_is_no_piece_or_too_much_is_refused(pieces: list[bytes], code: str) -> None:
    assembly = Assembly()
    *first, last = pieces
    for piece in first:
        assembly.add(piece)
    with pytest.raises(HostMessageError) as refused:
        assembly.add(last)
    assert refused.value.code == code


def test_a_mailbox_is_readable_while_something_waits_and_refuses_when_it_is_full(readable: Callable[..., bool]) -> None:
    box: Mailbox[int] = Mailbox(2)
    assert not readable(box.fileno(), 0)
    assert [box.put(n) for n in (1, 2, 3)] == [True, True, False]
    assert readable(box.fileno(), 0)
    assert box.take() == 1
    box.settle(is_readable=False)
    assert readable(box.fileno(), 0), "one is left"
    assert (box.take(), box.take()) == (2, None)
    box.settle(is_readable=False)
    assert not readable(box.fileno(), 0)
    box.settle(is_readable=True)
    assert readable(box.fileno(), 0), "the taker says so"
    box.lose(PeerGone("first"))
    box.lose(PeerGone("second"))
    box.settle(is_readable=False)
    assert readable(box.fileno(), 0), "for good"
    assert str(box.fault) == "first"
    box.close()
    box.close()
    assert not box.put(4)


def test_nothing_put_in_by_another_thread_is_overlooked(readable: Callable[..., bool]) -> None:
    box: Mailbox[int] = Mailbox(1 << 20)
    count, taken = 20_000, 0
    thread = threading.Thread(target=lambda: [box.put(n) for n in range(count)])
    thread.start()
    while taken < count:
        assert readable(box.fileno()), f"nobody was woken for {taken}"
        while (item := box.take()) is not None:
            assert item == taken
            taken += 1
        box.settle(is_readable=False)
    thread.join()
    assert not readable(box.fileno(), 0)
    box.close()


def test_a_closed_mailboxes_descriptor_is_not_written_to() -> None:
    """Its number may be another's by then."""
    box: Mailbox[Any] = Mailbox(4)
    number = box.fileno()
    box.close()
    read, write = os.pipe()
    assert number in (read, write)
    box.put(1)
    box.lose(PeerGone("late"))
    box.settle(is_readable=True)
    os.set_blocking(read, False)
    with pytest.raises(BlockingIOError):
        os.read(read, 1)
    os.close(read)
    os.close(write)
