"""What a hostile rank, or a stranger, can do to a switch: lose its own job's tree, and nothing of anybody else's."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from offpath.bindings.ina import connection, frames
from offpath.bindings.ina.address import parse_address
from offpath.bindings.ina.connection import SwitchFabric, TreeConnection
from offpath.bindings.ina.frames import CHUNK_BYTES, Reason
from offpath.bindings.ina.port import TreeLost, TreeRefused, TreeResult
from offpath.bindings.ina.rate_limiter import RateLimiter
from offpath.cli.local.switches import Switches
from offpath.dpu_daemon.switch import switch

from ...support.limits import shortened_commands
from ...support.processes import BOUND_S
from .ranks import STAMP, all_reduce, close_all, event_of, expected, inputs_of, job_of, same_bits, settled

HOSTS = (0, 0)
SLOW_S = 1.0
PATIENCE_S = 60.0
HELLO = frames.Attach(0, 2, "victim", 1, STAMP, "token")
HEADER = frames.Operation(0, 0, STAMP, 3 * CHUNK_BYTES, "fp32")
FULL = bytes(CHUNK_BYTES)


@pytest.fixture(scope="module")
def switches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Switches]:
    with Switches(str(tmp_path_factory.mktemp("switches")), leaves=1, capacity=4) as started:
        yield started


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Switches]:
    """They bear with the slow for a fifth of the time."""
    assert switch.SLOW_S == 5.0
    with (
        shortened_commands({f"{switch.__name__}.SLOW_S": SLOW_S}),
        Switches(str(tmp_path / "hasty"), leaves=1, capacity=4) as started,
    ):
        yield started


@pytest.fixture(scope="module")
def honest(switches: Switches) -> Iterator[Callable[[], None]]:
    """See `honest_job`."""
    with honest_job(switches) as works:
        yield works


@contextlib.contextmanager
def honest_job(switches: Switches) -> Iterator[Callable[[], None]]:
    """A job beside; calling it says that its next all-reduce is right."""
    ranks = job_of(switches, "honest", HOSTS)
    count = iter(range(1000))

    def works() -> None:
        index = next(count)
        inputs = inputs_of("fp32", 2, 30_000, index)
        for event, target in all_reduce(ranks, index, "fp32", inputs):
            assert event == TreeResult(index)
            assert same_bits(target, expected("fp32", inputs, HOSTS))

    yield works
    close_all(ranks)


class Raw:
    """A member that says whatever it likes."""

    def __init__(self, switches: Switches) -> None:
        address = parse_address(switches.addresses["s1"])
        self.sock = socket.socket(address.family, socket.SOCK_STREAM)
        self.sock.settimeout(BOUND_S)
        until = time.monotonic() + BOUND_S
        while True:
            try:
                self.sock.connect(address.target)
                break
            except BlockingIOError:  # the switch's backlog is full
                assert time.monotonic() < until
                time.sleep(0.01)
        self._reader = frames.Reader()
        self._frames: list[frames.Frame] = []

    def send(self, *said: frames.Frame | bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for each in said:
                self.sock.sendall(each if isinstance(each, bytes) else frames.pack(each))

    def hear(self) -> frames.Frame | None:
        """The next frame; None: the switch hung up."""
        while not self._frames:
            try:
                data = self.sock.recv(65_536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._frames += self._reader.feed(data)
        return self._frames.pop(0)

    def last_word(self) -> frames.Frame | None:
        """What the switch said last before it hung up."""
        last = None
        while (frame := self.hear()) is not None:
            last = frame
        return last


number = iter(range(2, 1000))


def attacked(switches: Switches, patience_s: float = connection.PATIENCE_S) -> tuple[Raw, TreeConnection, int]:
    """A job of two ranks, of which rank 0 is hostile; its stamp."""
    fresh = next(number)
    stamp = 1 << 32 | fresh
    switches.allow(switches.permissions("victim", HOSTS, number=fresh))
    raw = Raw(switches)
    raw.send(replace(HELLO, stamp=stamp))
    assert raw.hear() == frames.Attached(0)
    other = SwitchFabric(RateLimiter(), patience_s).attach(
        switches.addresses["s1"], job="victim", incarnation=1, stamp=stamp, rank=1, ranks=2, token="token"
    )
    assert not isinstance(event_of(other), TreeLost)
    return raw, other, stamp


def data(offset: int, payload: bytes = FULL, index: int = 0, rank: int = 0) -> frames.Data:
    return frames.Data(rank, index, offset, payload)


ATTACKS: dict[str, list[frames.Frame | bytes]] = {
    "no frame": [b"\xff" * 64],
    "no length": [bytes(64)],
    "another version": [struct.pack("<IBBHIQ", 16, 4, 2, 0, 0, 0)],
    "a chunk of nothing begun": [data(0)],
    "a chunk out of order": [HEADER, data(CHUNK_BYTES)],
    "a chunk twice": [HEADER, data(0), data(0)],
    "a short chunk": [HEADER, data(0, b"abcd")],
    "a chunk beyond the end": [replace(HEADER, nbytes=4), data(0, bytes(8))],
    "a chunk of another operation": [HEADER, data(0, index=1)],
    "a chunk of another rank": [HEADER, data(0, rank=1)],
    "an operation of another rank": [replace(HEADER, rank=1)],
    "an operation under another epoch": [replace(HEADER, stamp=1)],
    "two operations at once": [HEADER, replace(HEADER, index=1)],
    "the same operation twice": [HEADER, HEADER],
    "delivered without an operation": [frames.Delivered(0, 0)],
    "delivered before the result": [HEADER, frames.Delivered(0, 0)],
    "a result": [frames.Result(0, 0, b"sum")],
    "a verdict": [frames.Refused(0)],
    "an abort": [frames.Abort(STAMP, Reason.LOST)],
    "an attachment": [frames.Attached(0)],
}


@pytest.mark.parametrize("name", ATTACKS)
def test_who_breaks_the_rules_loses_its_tree_and_nobody_elses(
    name: str, switches: Switches, honest: Callable[[], None]
) -> None:
    raw, other, stamp = attacked(switches)
    with contextlib.closing(raw.sock):
        for said in ATTACKS[name]:
            mine = isinstance(said, frames.Operation) and said.stamp == STAMP
            raw.send(replace(said, stamp=stamp) if mine else said)
        raw.last_word()
        assert event_of(other) == TreeLost("rules")
    honest()
    settled(switches)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (replace(HELLO, job="nobody's"), Reason.UNKNOWN),
        (replace(HELLO, stamp=STAMP - 1), Reason.UNKNOWN),
        (replace(HELLO, incarnation=2), Reason.UNKNOWN),
        (replace(HELLO, token="other"), Reason.UNKNOWN),
        (replace(HELLO, ranks=3), Reason.UNKNOWN),
        (replace(HELLO, rank=2, ranks=3), Reason.UNKNOWN),
    ],
)
def test_who_was_not_allowed_is_turned_away(
    said: frames.Attach, why: Reason, switches: Switches, honest: Callable[[], None]
) -> None:
    switches.allow(switches.permissions("victim", HOSTS))
    raw = Raw(switches)
    with contextlib.closing(raw.sock):
        raw.send(said)
        assert raw.hear() == frames.AttachRefused(said.rank, why)
        assert raw.hear() is None
    honest()


def test_a_place_is_taken_once(switches: Switches, honest: Callable[[], None]) -> None:
    raw, other, stamp = attacked(switches)
    thief = Raw(switches)
    with contextlib.closing(raw.sock), contextlib.closing(thief.sock):
        thief.send(replace(HELLO, stamp=stamp, rank=1))
        assert thief.hear() == frames.AttachRefused(1, Reason.TAKEN)
        assert thief.hear() is None
        assert other.poll(0.3) is None, "the owner of the place must not notice"
    assert event_of(other) == TreeLost("lost")
    honest()


def test_a_mismatch_is_reported_and_not_waited_for(switches: Switches, honest: Callable[[], None]) -> None:
    before = switches.stats()["mismatches"]
    raw, other, stamp = attacked(switches)
    with contextlib.closing(raw.sock):
        other.start(0, "fp32", memoryview(bytes(4096)), memoryview(bytearray(4096)))
        assert other.poll(0.2) is None
        raw.send(replace(HEADER, stamp=stamp))
        assert event_of(other) == TreeLost("mismatch")
    assert settled(switches)["mismatches"] == before + 1
    honest()


def resident_bytes(switches: Switches, name: str) -> int:
    pages = Path(f"/proc/{switches.processes[name].pid}/statm").read_text("ascii").split()[1]
    return int(pages) * 4096


def test_a_member_that_is_far_ahead_is_not_read_and_fills_nothing(
    switches: Switches, honest: Callable[[], None]
) -> None:
    raw, other, stamp = attacked(switches)
    with contextlib.closing(raw.sock):
        before = resident_bytes(switches, "s1")
        raw.sock.settimeout(1.0)
        raw.send(replace(HEADER, stamp=stamp, nbytes=1 << 30))
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 1 << 30:
                raw.sock.sendall(frames.pack(data(sent)))
                sent += CHUNK_BYTES
        assert sent < 4 << 20
        honest()
        assert resident_bytes(switches, "s1") - before < 16 << 20
    assert event_of(other) == TreeLost("lost")


def test_a_member_that_reads_nothing_is_dropped_after_five_seconds(hasty: Switches) -> None:
    """It keeps its place in the tree for as long, and its fellow learns why it was lost."""
    raw, other, stamp = attacked(hasty, PATIENCE_S)
    nbytes = 8 << 20
    with contextlib.closing(raw.sock), honest_job(hasty) as honest:
        began, sent = time.monotonic(), 0
        other.start(0, "fp32", memoryview(bytes(nbytes)), memoryview(bytearray(nbytes)))
        raw.send(replace(HEADER, stamp=stamp, nbytes=nbytes))
        raw.sock.setblocking(False)
        lost, left = None, b""
        while lost is None and time.monotonic() - began < BOUND_S:
            if not left and sent < nbytes:
                left, sent = frames.pack(data(sent)), sent + CHUNK_BYTES
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                left = left[raw.sock.send(left) :]
            lost = other.poll(0.01)
        assert lost == TreeLost("slow")
        assert time.monotonic() - began >= SLOW_S
        honest()
    settled(hasty)


def test_a_refused_operation_that_is_too_large_runs_plain(switches: Switches, honest: Callable[[], None]) -> None:
    raw, other, stamp = attacked(switches)
    with contextlib.closing(raw.sock):
        raw.send(replace(HEADER, stamp=stamp, nbytes=(1 << 30) + 4))
        assert raw.hear() == frames.Refused(0)
        assert other.poll(0.3) is None, "told ahead of time, it is an event only once it is issued"
        other.start(0, "fp32", memoryview(bytes(8)), memoryview(bytearray(8)))
        assert event_of(other) == TreeRefused(0)
    assert event_of(other) == TreeLost("lost")
    honest()


def test_silent_strangers_are_hung_up_on_and_keep_nobody_out(hasty: Switches) -> None:
    pending = [Raw(hasty) for _ in range(300)]
    with honest_job(hasty) as honest:
        try:
            honest()
            raw, other, _ = attacked(hasty)
            raw.sock.close()
            assert event_of(other) == TreeLost("lost")
            assert all(stranger.hear() is None for stranger in pending)
        finally:
            for stranger in pending:
                stranger.sock.close()
        honest()
