"""A tenant that breaks every rule harms itself only (threats A4, A6, A7): see `tests.support.siege` for what is
checked after each test."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import orjson
import pytest

from offpath.bindings.ports import IMM_CANCEL, IMM_CREDIT, immediate, next_of
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import (
    DTYPE_CODES,
    FIXED_BYTES,
    FLAG_PAYLOAD_CRC,
    FLAG_STREAM,
    HEADER_COPY_BYTES,
    Tensor,
    pack_request,
    pack_tensors,
)

from ..support.cluster import Cluster
from ..support.peers import Peer, RawSession, hello, redeem
from ..support.processes import HERE, until
from ..support.siege import EVES_SESSIONS, Siege

MALFORMED = 1000
FLOATS = pack_tensors([Tensor(DTYPE_CODES["float64"], (1,), 0, 8)])


def request(session: RawSession, number: int, kernel: str = "echo", payload_bytes: int = 8, **fields: Any) -> bytes:
    kernel_id = session.kernel_id(kernel)
    return pack_request(request_id=number, kernel_id=kernel_id, payload_bytes=payload_bytes, **fields)


def works(session: RawSession, number: int = 1, slot: int = 0) -> None:
    """The session still serves an honest request."""
    session.write(slot, request(session, number), bytes(range(8)))
    assert session.ring(slot)
    assert session.rung() == slot
    answer = session.answer(slot)
    assert (answer.request_id, answer.status) == (number, Status.COMPLETED)


# -- regions -------------------------------------------------------------------------------------------------------
def test_the_regions_cannot_be_resized_or_sealed(siege: Siege) -> None:
    with siege.session() as session:
        for fd in (session.slots, session.answers):
            size = os.fstat(fd).st_size
            for wanted in (0, 4096, size - 1, size + 1, 1 << 40):
                with pytest.raises(PermissionError):
                    os.ftruncate(fd, wanted)
            with pytest.raises(PermissionError):
                os.pwrite(fd, b"x", size)
            with pytest.raises(PermissionError):
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
            with pytest.raises(OSError, match=r"not permitted"):
                os.posix_fallocate(fd, size, 4096)
        works(session)


def test_scribbling_over_both_regions_while_jobs_run_spoils_only_the_scribblers_jobs(siege: Siege) -> None:
    with siege.session() as session:
        noise = random.Random(5)
        for number in range(1, 60):
            session.write(0, request(session, number, payload_bytes=4096))
            session.ring(0)
            for view in (session.view, session.answer_view):
                assert isinstance(view, mmap.mmap)
                at = noise.randrange(128, 8000)
                view[at : at + 64] = noise.randbytes(64)
            assert session.rung() == 0
        works(session, 100)


def test_a_header_rewritten_while_it_is_read_is_taken_whole_or_not_at_all(siege: Siege) -> None:
    ended: Counter[str] = Counter()
    for _ in range(15):
        session = siege.session()
        stop = threading.Event()
        number = [1]

        def rewrite(session: RawSession = session, stop: threading.Event = stop, number: list[int] = number) -> None:
            while not stop.is_set():
                for payload_bytes, tensors in ((8, FLOATS), (1 << 30, b""), (64, FLOATS * 8), (8192, b"")):
                    session.write(0, request(session, number[0], payload_bytes=payload_bytes, tensors=tensors))

        writer = threading.Thread(target=rewrite)
        writer.start()
        try:
            for n in range(1, 40):
                number[0] = n + 1
                if not session.ring(0) or session.rung() is None:
                    break
                answer = session.answer(0)
                ended[f"{answer.status.name} {answer.reason.name}"] += 1
        finally:
            stop.set()
            writer.join(15)
        session.close()
    kinds = {"COMPLETED NONE", "REJECTED BAD_HEADER", "REJECTED DUPLICATE_ID"}
    assert set(ended) <= kinds, ended
    assert ended["COMPLETED NONE"] > 0


# -- the doorbell --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("blocking", [True, False])
def test_the_doorbells_flags_and_buffers_are_the_peers_own(siege: Siege, blocking: bool) -> None:
    with siege.session() as session:
        assert session.bell is not None
        for size in (1, 1 << 24):
            session.bell.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
            session.bell.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
            flags = fcntl.fcntl(session.bell, fcntl.F_GETFL) & ~os.O_NONBLOCK
            fcntl.fcntl(session.bell, fcntl.F_SETFL, flags if blocking else flags | os.O_NONBLOCK | os.O_ASYNC)
            session.write(0, request(session, size), b"12345678")
            session.ring(0)
            assert select.select([session.bell], [], [], 15)[0]
            assert session.rung() == 0
            assert session.answer(0).status is Status.COMPLETED


@pytest.mark.parametrize("way", [socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR], ids=["read", "write", "both"])
def test_a_doorbell_shut_down_ends_its_session(siege: Siege, way: int) -> None:
    session = siege.session()
    assert session.bell is not None
    session.write(0, request(session, 1, "sleep", tensors=FLOATS), struct.pack("<d", 0.05))
    session.ring(0)
    session.bell.shutdown(way)
    assert session.end() == "peer_gone"


def test_a_doorbell_drained_dupped_and_closed_ends_its_session_with_the_last_copy(siege: Siege) -> None:
    session = siege.session()
    assert session.bell is not None
    copies = [session.bell.dup() for _ in range(5)]
    session.write(0, request(session, 1))
    session.ring(0)
    assert copies[0].recv(8) == bytes(4), "drained by a copy"
    session.bell.close()
    session.bell = copies[0]
    works(session, 2)
    for copy in copies:
        copy.close()
    session.bell = None
    assert session.end() == "peer_gone"


def test_descriptors_sent_over_the_doorbell_do_not_stay(siege: Siege) -> None:
    with siege.session() as session:
        assert session.bell is not None
        for _ in range(200):
            socket.send_fds(session.bell, [immediate(IMM_CREDIT, 0).to_bytes(4, "little")], [0] * 50)
        works(session)


def test_credits_and_cancels_without_end_change_nothing(siege: Siege) -> None:
    with siege.session() as session:
        for n in range(20_000):
            assert session.ring(immediate((IMM_CREDIT, IMM_CANCEL)[n % 2], n % 4))
        works(session)


@pytest.mark.parametrize("is_valid", [True, False], ids=["good headers", "bad headers"])
def test_requests_whose_answers_are_never_read_end_the_session(siege: Siege, is_valid: bool) -> None:
    """The doorbell towards the peer fills up; what the daemon would have to remember is bounded by the slots."""
    session = siege.session()
    header = request(session, 1, "echo") if is_valid else bytes(FIXED_BYTES)
    session.write(0, header)
    assert session.ring(0)
    if is_valid:
        assert session.rung() == 0
    for _ in range(100_000):
        if not session.ring(0):
            break
    else:
        raise AssertionError("it was remembered for ever")
    assert session.end() == ("answers_unread" if is_valid else "magic")


def test_answers_to_good_requests_are_never_read_either(siege: Siege) -> None:
    """Each slot answered but none read: the answers are in memory, the doorbells wait, nothing else happens."""
    with siege.session(slots=8) as session:
        for slot in range(8):
            session.write(slot, request(session, slot + 1))
            session.ring(slot)
        until(lambda: all(answered(session, slot) for slot in range(8)))
        assert sorted(session.rung() or 0 for _ in range(8)) == list(range(8))


def answered(session: RawSession, slot: int) -> bool:
    assert session.answer_view is not None
    at = slot * session.answer_stride
    return session.answer_view[at : at + 4] == b"OFAS" and session.answer(slot).status is Status.COMPLETED


@pytest.mark.parametrize(
    ("imm", "code"),
    [
        (b"\x04\x00\x00\x00", "slot"),
        (b"\xff\xff\xff\x00", "slot"),
        (b"\x04\x00\x00\x01", "slot"),
        (b"\x00\x00\x00\x04", "immediate_kind"),
        (b"\x01\x00\x00\xff", "immediate_kind"),
        (b"\x00", "immediate_length"),
        (b"\x00" * 3, "immediate_length"),
        (b"\x00" * 5, "immediate_length"),
        (b"\x00" * 8, "immediate_length"),
        (b"\x00" * 100_000, "immediate_length"),
        (b"", "peer_gone"),
    ],
    ids=str,
)
def test_an_immediate_that_no_honest_client_sends_ends_the_session(siege: Siege, imm: bytes, code: str) -> None:
    session = siege.session()
    assert session.bell is not None
    works(session)
    session.bell.send(imm)
    assert session.end() == code


@pytest.mark.parametrize("kernel", ["sleep", "count"])
def test_an_answer_that_does_not_lie_in_its_slot_cannot_be_taken(siege: Siege, kernel: str) -> None:
    session = siege.session()
    is_stream = kernel == "count"
    wish = struct.pack("<4d", 3, 1, 0, 0) if is_stream else struct.pack("<d", 5.0)
    tensors = pack_tensors([Tensor(DTYPE_CODES["float64"], (len(wish) // 8,), 0, len(wish))])
    flags = FLAG_STREAM if is_stream else 0
    session.write(0, request(session, 1, kernel, len(wish), tensors=tensors, flags=flags), wish)
    session.ring(0)
    if is_stream:
        assert session.rung() == 0
        assert (session.answer(0).number, session.answer(0).has_more) == (1, True)
        session.ring(next_of(0, 1))
        assert session.rung() == 0
        assert session.answer(0).number == 2
    session.ring(next_of(0, 1))
    assert session.end() == "answer_number"


def test_a_slot_in_use_is_not_taken_again(siege: Siege) -> None:
    session = siege.session()
    session.write(0, request(session, 1, "sleep", tensors=FLOATS), struct.pack("<d", 0.2))
    session.ring(0)
    session.ring(0)
    assert session.end() == "slot_in_use"


def test_every_immediate_there_is_at_random_never_stops_the_daemon(siege: Siege) -> None:
    noise = random.Random(11)
    codes: Counter[str] = Counter()
    for _ in range(60):
        session = siege.session()
        assert session.bell is not None
        for number in range(1, 51):
            slot = noise.randrange(4)
            session.write(slot, request(session, number, noise.choice(("echo", "nothing"))))
            imm = noise.choice((slot, slot, immediate(IMM_CREDIT, slot), immediate(IMM_CANCEL, slot)))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                session.bell.send((imm if noise.random() < 0.98 else noise.getrandbits(32)).to_bytes(4, "little"))
        session.peer.send_message(kind="goodbye")
        codes[session.end()] += 1
    assert set(codes) <= {"", "slot", "slot_in_use", "immediate_kind"}, codes


# -- tickets -------------------------------------------------------------------------------------------------------
def test_of_two_who_redeem_a_ticket_at_once_one_gets_it(siege: Siege) -> None:
    for _ in range(20):
        with Peer(siege.cluster.address) as peer, ThreadPoolExecutor(4) as threads:
            peer.send_message(**hello("eve"))
            welcome = peer.hear()
            tries = [threads.submit(redeem, welcome.fabric.address, welcome.ticket.encode()) for _ in range(4)]
            taken = [fds for fds in (each.result(15) for each in tries) if fds is not None]
            assert len(taken) == 1
            for fd in taken[0]:
                os.close(fd)
        until(siege.lets_eve_in)


def test_guessed_tickets_are_refused_each_in_its_turn(siege: Siege) -> None:
    noise = random.Random(3)
    with Peer(siege.cluster.address) as peer:
        peer.send_message(**hello("eve"))
        welcome = peer.hear()
        path, ticket = welcome.fabric.address, welcome.ticket
        near = [ticket[:-1], ticket + "x", ticket[:-1] + "_", ticket.swapcase(), " " + ticket, ticket + "\n"]
        far = [noise.randbytes(noise.randrange(1, 400)) for _ in range(300)]
        for guess in (*(text.encode() for text in near if text != ticket), *far, b"\x00", b"taken", b"\xff" * 100_000):
            assert redeem(path, guess) is None
        fds = redeem(path, ticket.encode())
        assert fds is not None, "guesses beside it must not spoil the right one"
        for fd in fds:
            os.close(fd)


def test_silent_connections_on_both_sockets_lock_nobody_out(siege: Siege) -> None:
    """The longest silent ones make room for who comes now."""
    silent: list[socket.socket] = []
    try:
        for _ in range(3):
            for _ in range(150):
                silent.append(siege.fabric_socket())
            for _ in range(200):
                silent.append(Peer(siege.cluster.address).sock)
            with siege.cluster.connect("witness", slots=1) as requester:
                assert requester.submit("echo", [np.ones(3)], timeout=15).array.sum() == 3
    finally:
        for sock in silent:
            sock.close()


def test_sessions_asked_for_and_never_redeemed_hold_only_the_askers_quota(siege: Siege) -> None:
    peers = [Peer(siege.cluster.address) for _ in range(EVES_SESSIONS * 3)]
    answers = []
    for peer in peers:
        peer.send_message(**hello("eve"))
        answers.append(type(peer.hear()).__name__)
    assert Counter(answers) == {"Welcome": EVES_SESSIONS, "Refused": EVES_SESSIONS * 2}
    with siege.cluster.connect("witness", slots=1):
        pass
    for peer in peers:
        peer.close()


# -- malformed negotiation -----------------------------------------------------------------------------------------
def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def negotiations(noise: random.Random) -> Iterator[bytes]:
    """Byte streams that are no honest negotiation, or nearly one."""
    good = framed(orjson.dumps(hello("eve")))
    odd: list[Any] = [None, True, 1.5, -1, 1 << 70, "", "x" * 300, [], {}, [[]], {"a": 1}, "\u0000", "🦀" * 90]
    kinds: list[Callable[[], bytes]] = [
        lambda: noise.randbytes(noise.randrange(1, 200)),
        lambda: framed(noise.randbytes(noise.randrange(1, 3000))),
        lambda: flipped(good, noise, 1),
        lambda: flipped(good, noise, 20),
        lambda: good[: noise.randrange(1, len(good))],
        lambda: good * noise.randrange(2, 9),
        lambda: good + noise.randbytes(noise.randrange(1, 300)),
        lambda: struct.pack("<I", noise.choice((0, 65_537, 1 << 20, 0xFFFF_FFFF))) + b"{" * 100,
        lambda: framed(b"[" * noise.randrange(1, 65_000)),
        lambda: framed(b'{"kind":' * noise.randrange(1, 8_000)),
        lambda: framed(orjson.dumps(nested(noise.randrange(1, 250)))),
        lambda: framed(orjson.dumps(hello("eve", version=noise.choice([0, 2, 65_535, "1", None, [1], 1.0, True])))),
        lambda: framed(dumps({**hello("eve"), noise.choice(sorted(hello("eve"))): noise.choice(odd)})),
        lambda: framed(orjson.dumps(hello("eve", **{noise.choice(("x", "uid", "admin", "x" * 5000)): 1}))),
        lambda: framed(orjson.dumps({k: v for k, v in hello("eve").items() if noise.random() < 0.8})),
        lambda: framed(orjson.dumps({"kind": noise.choice(["goodbye", "welcome", "closing", "kernels", "", 7, None])})),
        lambda: framed(b'{"kind":"hello","kind":"goodbye","slots":1e400,"payload_bytes":NaN}'),
        lambda: framed(orjson.dumps(hello("eve")).replace(b"eve", b"\xed\xa0\x80")),
        lambda: framed(b" " * 65_536),
        lambda: b"GET / HTTP/1.1\r\nHost: offpath\r\n\r\n",
        lambda: framed(b"{}"),
    ]
    for n in range(MALFORMED):
        yield kinds[n % len(kinds)]()


def dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer above 64 bits: JSON knows no such limit
        return repr(value).replace("'", '"').replace("None", "null").encode()


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"kind": value}
    return value


def flipped(data: bytes, noise: random.Random, bits: int) -> bytes:
    copy = bytearray(data)
    for _ in range(bits):
        copy[noise.randrange(len(copy))] ^= 1 << noise.randrange(8)
    return bytes(copy)


REFUSALS = {"json", "version", "model", "hello", "frame_length", "out_of_turn", "denied", "memory", "payload_bytes"}
REFUSALS |= {"result_bytes", "sessions", ""}


def test_a_thousand_malformed_negotiations_are_each_refused_with_a_typed_code(siege: Siege) -> None:
    codes: Counter[str] = Counter()
    for stream in negotiations(random.Random(2024)):
        with Peer(siege.cluster.address) as peer:
            peer.send(stream)
            with contextlib.suppress(OSError):
                peer.sock.shutdown(socket.SHUT_WR)
            codes[peer.hear_the_end()] += 1
    assert sum(codes.values()) == MALFORMED
    assert set(codes) <= REFUSALS, codes
    assert min(codes[code] for code in ("json", "version", "model", "hello", "frame_length", "denied")) > 0, codes


def test_negotiations_cut_into_single_bytes_are_read_all_the_same(siege: Siege) -> None:
    with Peer(siege.cluster.address) as peer:
        for byte in framed(orjson.dumps(hello("eve"))):
            peer.send(bytes([byte]))
        assert peer.hear().tenant == "eve"
        peer.send_message(kind="hello")
        assert peer.hear_the_end() == "model"


# -- malformed headers ---------------------------------------------------------------------------------------------
_FIELDS = {"magic": "<I", "version": "<H", "flags": "<H", "id": "<Q", "tensors": "<B", "crc": "<I", "bytes": "<Q"}
_AT = {"magic": 0, "version": 4, "flags": 6, "id": 8, "tensors": 23, "crc": 28, "bytes": 32}


def with_field(header: bytes, name: str, value: int) -> bytes:
    return sealed(header[: _AT[name]] + struct.pack(_FIELDS[name], value) + header[_AT[name] + field_size(name) :])


def field_size(name: str) -> int:
    return struct.calcsize(_FIELDS[name])


def sealed(header: bytes) -> bytes:
    """With the checksum that its bytes now need."""
    crc = zlib.crc32(header[FIXED_BYTES:], zlib.crc32(header[: FIXED_BYTES - 4]))
    return header[: FIXED_BYTES - 4] + struct.pack("<I", crc) + header[FIXED_BYTES:]


def headers(session: RawSession, noise: random.Random) -> Iterator[tuple[bytes, set[str]]]:
    """Headers that are each wrong, and the codes that may say so."""
    good = request(session, 1, payload_bytes=64, tensors=FLOATS)

    def tensor(dtype: int, ndim: int, dims: tuple[int, ...], offset: int, nbytes: int) -> bytes:
        packed = struct.pack("<BBHI6IQQ", dtype, ndim, 0, 0, *dims, *(0,) * (6 - len(dims)), offset, nbytes)
        return request(session, 1, payload_bytes=64, tensors=packed)

    big = noise.getrandbits(32) | 1 << 20
    kinds: list[tuple[Callable[[], bytes], set[str]]] = [
        (lambda: noise.randbytes(HEADER_COPY_BYTES), {"magic"}),
        (lambda: flipped(good, noise, 1), {"magic", "version", "crc", "too_many_tensors"}),
        (lambda: flipped(good, noise, 9), {"magic", "version", "crc", "too_many_tensors"}),
        (lambda: with_field(good, "magic", noise.getrandbits(31)), {"magic"}),
        (lambda: with_field(good, "version", noise.choice((0, 1, 3, 255, 65_535))), {"version"}),
        (lambda: with_field(good, "flags", 1 << noise.randrange(6, 16)), {"flags"}),
        (lambda: with_field(good, "id", 0), {"request_id"}),
        (lambda: with_field(good, "tensors", noise.randrange(81, 256)), {"too_many_tensors"}),
        (lambda: with_field(good, "tensors", noise.randrange(2, 9)), {"crc"}),
        (lambda: with_field(good, "crc", big), {"reserved"}),
        (lambda: with_field(good, "bytes", noise.choice((8193, 1 << 32, (1 << 64) - 1))), {"payload_bytes"}),
        (lambda: with_field(good, "bytes", noise.randrange(8)), {"tensor_bounds"}),
        (lambda: sealed(good[: noise.randrange(40, 124)] + b"\1" + good[125:]), {"reserved", "crc"}),
        (lambda: tensor(noise.choice((0, 20, 254)), 1, (1,), 0, 1), {"dtype"}),
        (lambda: tensor(1, noise.randrange(7, 256), (1, 1, 1, 1, 1, 1), 0, 1), {"dims"}),
        (lambda: tensor(1, 1, (8, 1), 0, 8), {"dims"}),
        (lambda: tensor(11, 2, (4, 2), 0, 63), {"tensor_bytes"}),
        (lambda: tensor(1, 2, (big, big), 0, big * big), {"tensor_bounds"}),
        (lambda: tensor(1, 6, (big,) * 6, 0, big), {"tensor_bytes"}),
        (lambda: tensor(1, 1, (8,), (1 << 64) - 4, 8), {"tensor_bounds"}),
        (lambda: tensor(11, 1, (1,), noise.choice((1, 4, 7)), 8), {"tensor_alignment"}),
        (lambda: tensor(255, 0, (), 0, 8), {"reserved"}),
        (lambda: bytes(HEADER_COPY_BYTES), {"magic"}),
    ]  # fmt: skip
    while True:
        for make, codes in kinds:
            yield make(), codes


def test_a_thousand_malformed_headers_are_each_rejected_and_every_third_ends_its_session(siege: Siege) -> None:
    noise = random.Random(2025)
    sent = 0
    session = siege.session()
    wrong = headers(session, noise)
    ended: Counter[str] = Counter()
    while sent < MALFORMED:
        if sent:
            session = siege.session()
        works(session, 1 << 40)
        for _ in range(3):
            header, codes = next(wrong)
            slot = noise.randrange(4)
            session.write(slot, header.ljust(HEADER_COPY_BYTES, b"\0"))
            assert session.ring(slot)
            sent += 1
            assert session.rung() == slot, (header, codes)
            answer = session.answer(slot)
            assert (answer.request_id, answer.status, answer.reason) == (0, Status.REJECTED, Reason.BAD_HEADER)
        code = session.end()
        assert code in codes, (code, codes, header)
        ended[code] += 1
    assert len(ended) >= 10, ended


def test_two_malformed_headers_in_a_while_are_forgiven(siege: Siege) -> None:
    with siege.session() as session:
        for n in range(2):
            session.write(0, bytes(FIXED_BYTES))
            session.ring(0)
            assert session.rung() == 0
            works(session, n + 1)


def test_a_payload_checksum_that_is_a_lie_fails_its_job_only(siege: Siege) -> None:
    with siege.session() as session:
        for number in range(1, 5):
            session.write(0, request(session, number, flags=FLAG_PAYLOAD_CRC, payload_crc=number))
            session.ring(0)
            assert session.rung() == 0
            answer = session.answer(0)
            assert (answer.status, answer.reason) == (Status.FAILED, Reason.PAYLOAD_CHECKSUM)
        works(session, 9)


# -- coming and going ----------------------------------------------------------------------------------------------
def test_a_process_killed_with_requests_in_flight_leaves_nothing(siege: Siege) -> None:
    cluster: Cluster = siege.cluster
    script = str(HERE / "steady_main.py")
    for n in range(5):
        arguments = [cluster.address, "eve", str(cluster.folder / "eve.token"), "3", "4", "4", ("echo", "sleep")[n % 2]]
        with subprocess.Popen(
            [sys.executable, script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            try:
                assert select.select([process.stdout], [], [], 30)[0]
                assert process.stdout.readline() == b'"ready"\n'
                time.sleep(0.02)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait(30)
        siege.after()


def test_sessions_opened_and_dropped_at_every_step_leave_nothing(siege: Siege) -> None:
    for n in range(60):
        step = n % 6
        with Peer(siege.cluster.address) as peer:
            if step > 0:
                peer.send_message(**hello("eve"))
            if step > 1:
                welcome = peer.hear()
            if step in (3, 4):
                with siege.fabric_socket() as sock:
                    sock.send(welcome.ticket.encode())  # and gone before the descriptors come
                    if step == 4:
                        peer.close()
            if step == 5 and (fds := redeem(welcome.fabric.address, welcome.ticket.encode())):
                for fd in fds:
                    os.close(fd)
        until(siege.lets_eve_in)
