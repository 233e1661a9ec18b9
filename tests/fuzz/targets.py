"""The parsers of outside bytes: how each is called, what it may raise, and what must hold of what it accepts.

Every input is bytes and a few numbers (a limit, a count of descriptors, sizes of chunks), so that one engine, one
corpus format and one set of planted bugs serve all.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import tempfile
import zlib
from collections.abc import Callable, Iterator
from types import UnionType
from typing import Any, get_args

import orjson

from offpath.bindings import errors
from offpath.bindings.channel import session as sessions
from offpath.bindings.doca import pieces
from offpath.bindings.ina import frames as ina
from offpath.bindings.wire import frames, header, host, regions
from offpath.dpu_daemon import config
from offpath.dpu_daemon.switch.inc.packets import DatagramInvalid
from offpath.host_helper.ina import rank_file
from offpath.sched.ina.protocol.records import epoch_to_data, state_to_data

from . import gateway_requests, key_value, packet_stream
from .mutate import (
    ANSWER,
    LAUNCH,
    REQUEST,
    RESULT,
    Numbers,
    datagram_mutation,
    ina_mutation,
    json_mutation,
    packet_mutation,
    page_mutation,
    piece_mutation,
    proceed_mutation,
    region_mutation,
    stream_mutation,
    struct_mutation,
    tensor_mutation,
    text_mutation,
)
from .target import Modules, Target

TICKET = "T" * 43
REGION_PACKERS: dict[type, Callable[..., bytes]] = {
    regions.RegionCopy: regions.pack_copy,
    regions.RegionOffer: regions.pack_region,
    regions.RegionDrop: regions.pack_drop,
}
_OTHER = "U" * 43
_TENSOR_CODES = {"dtype", "dims", "reserved", "tensor_bytes", "tensor_bounds", "tensor_alignment"}


@contextlib.contextmanager
def targets(modules: Modules | None = None) -> Iterator[dict[str, Target]]:
    """All of them by name; some hold a socket or a file meanwhile."""
    m = modules or Modules()
    with tempfile.TemporaryDirectory(prefix="offpath-f-") as folder, contextlib.ExitStack() as held:
        made = [
            _request(m), _answer(m), _tensors(m), _launch(m), _result(m), _proceed(m), _region(m), _session(m),
            _pieces(m), _frames(m), _ina(m), _packets(m), *_key_value(m), _page(m), *_controls(m),
            held.enter_context(_ticket(m, folder)), _reply(m), _config(m), held.enter_context(_toml(m)),
            *gateway_requests.targets(m, folder),
        ]  # fmt: skip
        yield {target.name: target for target in made}


# -- headers -------------------------------------------------------------------------------------------------------
def _in_bounds(tensors: tuple[Any, ...], total: int) -> None:
    for t in tensors:
        if t.dtype == header.ABSENT:
            assert t == (header.Tensor(header.ABSENT, (), 0, 0))
            continue
        element = header.DTYPES[t.dtype][1]
        if t.dtype == header.STRINGS:
            least = math.prod(t.dims) * element
            assert least <= t.nbytes
            assert least or not t.nbytes
            element = 1
        else:
            assert math.prod(t.dims) * element == t.nbytes
        assert 0 <= t.offset <= t.offset + t.nbytes <= total
        assert t.offset % element == 0
        assert len(t.dims) <= header.MAX_DIMS


def _request(m: Modules) -> Target:
    def run(data: bytes, numbers: Numbers) -> Any:
        return m.header.parse_request(data, numbers[0])

    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        assert got.payload_bytes <= numbers[0]
        assert got.request_id > 0
        assert len(got.tensors) == got.tensor_count * header.TENSOR_BYTES <= header.MAX_TENSORS * header.TENSOR_BYTES
        assert not got.flags & ~63
        assert got.tensor_count or not got.flags & header.FLAG_PARAMETERS
        assert got.sequence_id or not got.flags & header.SEQUENCE_FLAGS
        assert got.flags & header.FLAG_PAYLOAD_CRC or not got.payload_crc
        _in_bounds(header.unpack_tensors(got.tensors, got.payload_bytes), got.payload_bytes)
        fields = got._asdict()
        del fields["tensor_count"]
        assert data.startswith(header.pack_request(**fields)), "packing it again gives other bytes"

    codes = {"short", "magic", "version", "too_many_tensors", "crc", "flags", "payload_bytes", "request_id"}
    codes |= {"sequence_id", "parameters"}
    mutate = struct_mutation(REQUEST, header.FIXED_BYTES, has_crc=True)
    return Target(
        "parse_request", run, (errors.HeaderError,), check, mutate, frozenset(codes | _TENSOR_CODES),
        lambda got: f"{got.tensor_count} tensors, flags {got.flags}",
    )  # fmt: skip


def _answer(m: Modules) -> Target:
    def run(data: bytes, numbers: Numbers) -> Any:
        return m.header.parse_answer(data, numbers[0])

    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        assert got.result_bytes <= numbers[0]
        assert got.flags in (0, header.FLAG_MORE)
        assert not got.flags or (got.number and got.status is header.Status.COMPLETED)
        _in_bounds(got.tensors, got.result_bytes)
        fields = got._asdict()
        fields |= {"tensors": header.pack_tensors(got.tensors), "stages": tuple(got.stages)}
        assert data.startswith(header.pack_answer(**fields)), "packing it again gives other bytes"
        assert type(got.status) is header.Status
        assert type(got.reason) is header.Reason

    codes = {"short", "magic", "version", "too_many_tensors", "crc", "flags", "result_bytes", "status", "number"}
    mutate = struct_mutation(ANSWER, header.FIXED_BYTES, has_crc=True)
    return Target(
        "parse_answer", run, (errors.HeaderError,), check, mutate, frozenset(codes | _TENSOR_CODES),
        lambda got: f"{got.status.name}, {len(got.tensors)} tensors",
    )  # fmt: skip


def _tensors(m: Modules) -> Target:
    def run(data: bytes, numbers: Numbers) -> Any:
        return m.header.unpack_tensors(data, numbers[0])

    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        _in_bounds(got, numbers[0])
        assert header.pack_tensors(got) == data

    return Target(
        "unpack_tensors", run, (errors.HeaderError,), check, tensor_mutation,
        frozenset({"descriptor_length"} | _TENSOR_CODES), lambda got: f"{[t.dtype for t in got[:2]]} of {len(got)}",
    )  # fmt: skip


# -- host channel --------------------------------------------------------------------------------------------------
def _launch(m: Modules) -> Target:
    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        assert host.pack_launch(**got._asdict()) == data
        assert len(host.unpack_rows(got.rows)) <= host.MAX_MEMBERS
        assert len(got.tensors) <= header.MAX_TENSORS * header.TENSOR_BYTES

    return Target(
        "parse_launch", lambda data, _: m.host.parse_launch(data), (errors.HostMessageError,), check,
        struct_mutation(LAUNCH, host.LAUNCH_BYTES, has_crc=False), frozenset({"short", "launch", "length"}),
        lambda got: f"{len(got.tensors) // header.TENSOR_BYTES} tensors, {'a' if got.sequence else 'no'} sequence",
    )  # fmt: skip


def _result(m: Modules) -> Target:
    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        assert host.RESULT_OK <= got.status <= host.LAST_RESULT
        assert len(got.inline) == (got.result_bytes if got.is_inline else 0)
        assert len(got.inline) <= host.INLINE_RESULT_BYTES
        assert len(got.tensors) <= header.MAX_TENSORS * header.TENSOR_BYTES
        assert host.pack_result(**got._asdict()) == data

    return Target(
        "parse_result", lambda data, _: m.host.parse_result(data), (errors.HostMessageError,), check,
        struct_mutation(RESULT, host.RESULT_BYTES, has_crc=False),
        frozenset({"short", "result", "length", "inline_length"}),
        lambda got: f"status {got.status}, inline {got.is_inline}, {len(got.tensors) // header.TENSOR_BYTES} tensors",
    )  # fmt: skip


def _proceed(m: Modules) -> Target:
    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        assert got.number
        assert host.pack_proceed(*got) == data

    return Target(
        "parse_proceed", lambda data, _: m.host.parse_proceed(data), (errors.HostMessageError,), check,
        proceed_mutation, frozenset({"length", "proceed"}),
        lambda got: f"stop {got.is_stop}",
    )  # fmt: skip


def _region(m: Modules) -> Target:
    """A message of the copy engine `cuda`."""

    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        assert REGION_PACKERS[type(got)](*got) == data
        if not isinstance(got, regions.RegionDrop):
            assert 0 < got.nbytes <= regions.MOST_REGION_BYTES

    return Target(
        "parse_region", lambda data, _: m.regions.parse(data), (errors.HostMessageError,), check,
        region_mutation, frozenset({"region_message", "region_bytes"}), lambda got: type(got).__name__,
    )  # fmt: skip


def _session(m: Modules) -> Target:
    """A frame of a session over ZeroMQ or Comch."""

    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        assert sessions.OPEN <= got.kind <= sessions.BYE
        assert bool(got.body) == (got.kind == sessions.DATA)
        assert len(got.body) <= host.MAX_MESSAGE_BYTES
        head = bytes([got.kind, sessions.VERSION, 0, 0]) + got.taken.to_bytes(4, "little") + got.session
        assert head + got.body == data

    return Target(
        "session_frame", lambda data, _: m.sessions.parse(data), (errors.HostMessageError,), check, piece_mutation,
        frozenset({"short", "frame", "too_long", "empty"}), lambda got: f"kind {got.kind}",
    )  # fmt: skip


def _pieces(m: Modules) -> Target:
    """Messages of Comch, as long as ``numbers`` say, put together to frames."""

    def cut(data: bytes, numbers: Numbers) -> list[bytes]:
        at, found = 0, []
        for size in numbers:
            found.append(data[at : at + size])
            at += size
        return found

    def run(data: bytes, numbers: Numbers) -> Any:
        assembly = m.pieces.Assembly()
        got = [frame for piece in cut(data, numbers) if (frame := assembly.add(piece)) is not None]
        return got, bytes(assembly._parts)

    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        whole, rest = got
        expected, open_part = [], b""
        for piece in cut(data, numbers):
            if piece == pieces.HEARTBEAT:
                continue
            open_part += piece[1:]
            assert len(open_part) <= sessions.HEAD_BYTES + host.MAX_MESSAGE_BYTES
            if piece[0] == pieces.LAST:
                expected.append(open_part)
                open_part = b""
        assert (whole, rest) == (expected, open_part)

    return Target(
        "comch_pieces", run, (errors.HostMessageError,), check, piece_mutation, frozenset({"frame", "too_long"}),
        lambda got: f"{min(len(got[0]), 4)} frames, {min(len(got[1]), 2)} open",
    )  # fmt: skip


# -- frames --------------------------------------------------------------------------------------------------------
def split(data: bytes) -> tuple[list[bytes], bool]:
    """What a stream holds, told by plain slicing: (whole frames, does a refused length follow?)."""
    whole, at = [], 0
    while len(data) - at >= 4:
        length = int.from_bytes(data[at : at + 4], "little")
        if not 0 < length <= frames.MAX_FRAME_BYTES:
            return whole, True
        if len(data) - at - 4 < length:
            break
        whole.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return whole, False


def _frames(m: Modules) -> Target:
    def run(data: bytes, numbers: Numbers) -> Any:
        reader, got, at = m.frames.FrameReader(), [], 0
        for size in numbers:
            got += reader.feed(data[at : at + size])
            at += size
        return reader, got + reader.feed(data[at:])

    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        reader, taken = got
        expected, is_refused = split(data)
        assert (taken, is_refused) == (expected, False)
        left = len(data) - sum(4 + len(body) for body in expected)
        assert len(reader._buffer) == left <= 4 + frames.MAX_FRAME_BYTES
        assert reader.at_boundary() == (left == 0)
        assert b"".join(frames.frame(body) for body in taken) == data[: len(data) - left]

    return Target(
        "frame_reader", run, (errors.FrameError,), check, stream_mutation, frozenset({"frame_length"}),
        lambda got: f"{min(len(got[1]), 4)} frames, {min(len(got[0]._buffer), 5)} held",
    )  # fmt: skip


# -- INA fabric ----------------------------------------------------------------------------------------------------
def _ina(m: Modules) -> Target:
    """A stream between rank and switch, in chunks of sizes ``numbers``."""

    def run(data: bytes, numbers: Numbers) -> Any:
        reader, got, at = m.ina.Reader(), [], 0
        for size in numbers:
            got += reader.feed(data[at : at + size])
            at += size
        return reader, got + reader.feed(data[at:])

    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        reader, taken = got
        packed = b"".join(m.ina.pack(frame) for frame in taken)
        assert data.startswith(packed), "packing it again gives other bytes"
        assert reader.held == len(data) - len(packed) < 4 + ina.MOST_FRAME_BYTES
        for frame in taken:
            assert 0 <= getattr(frame, "rank", 0) < ina.MOST_RANKS
            assert 0 <= getattr(frame, "index", 0) < 1 << 63
            assert 0 <= getattr(frame, "stamp", 0) < 1 << 63
            assert 0 < len(getattr(frame, "payload", b"x")) <= ina.CHUNK_BYTES
            assert not getattr(frame, "offset", 0) % ina.CHUNK_BYTES
            if hasattr(frame, "ranks"):
                assert frame.rank < frame.ranks
                assert (frame.job + frame.token).isprintable()
                assert min(len(frame.job), len(frame.token)) > 0
            if hasattr(frame, "dtype"):
                assert frame.nbytes > 0
                assert not frame.nbytes % ina.DTYPES[frame.dtype][1]

    codes = {
        "frame_length", "version", "kind", "rank", "index", "reserved", "body_length", "name", "integer", "dtype",
        "operation_bytes", "offset", "reason", "flag",
    }  # fmt: skip
    return Target(
        "ina_frames", run, (errors.InaFrameError,), check, ina_mutation, frozenset(codes),
        lambda got: f"{[type(frame).__name__ for frame in got[1][:2]]}, {min(got[0].held, 5)} held",
    )  # fmt: skip


def _packets(m: Modules) -> Target:
    """A stream between a process and a statistical switch, in chunks of sizes ``numbers``."""
    return Target(
        "ina_packets", lambda data, numbers: packet_stream.run(m.packets, data, numbers), (errors.PacketError,),
        packet_stream.check, packet_mutation, packet_stream.CODES,
        lambda got: f"{[packet.kind.name for packet in got[1][:2]]}, {min(got[0].held, 5)} held",
    )  # fmt: skip


def _key_value(m: Modules) -> list[Target]:
    """Datagrams of the key-value services of `sched.inc`'s switches, and addresses in their messages."""
    refuses = (DatagramInvalid,)
    words = (b"127.0.0.1", b":", b"21000", b"0", b"+1", b" ", b"::1", b"65536", b".", b"255")
    return [
        Target(
            "inc_packet", lambda data, _: m.key_value.unpack(data), refuses, key_value.check_packet, datagram_mutation,
            key_value.PACKET_CODES, lambda got: f"{got.kind.name} {got.status.name}, {len(got.value) // 64}",
        ),
        Target(
            "inc_controlled", lambda data, _: m.key_value.controlled(data), refuses, key_value.check_controlled,
            datagram_mutation, key_value.CONTROL_CODES, lambda got: str(len(got[2]) // 8192),
        ),
        Target(
            "inc_address", lambda data, _: m.key_value.address_of(data.decode("latin-1")), refuses,
            key_value.check_address, text_mutation(words), key_value.ADDRESS_CODES, lambda got: str(len(str(got[1]))),
        ),
    ]  # fmt: skip


# -- pages ---------------------------------------------------------------------------------------------------------
def _page(m: Modules) -> Target:
    """A record between a rank and its helper; the number says whose: state, pattern, epoch."""
    areas = rank_file.STATE, rank_file.PATTERN, rank_file.EPOCH
    packs = state_to_data, rank_file.pattern_to_data, epoch_to_data

    def run(data: bytes, numbers: Numbers) -> Any:
        area = numbers[0] % 3
        return area, m.rank_file.unpack(data, (m.rank_file.STATE, m.rank_file.PATTERN, m.rank_file.EPOCH)[area])

    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        area, record = got
        sequence, length, crc = rank_file.MARK.unpack_from(data)
        assert not sequence & 1
        assert length <= areas[area].size - rank_file.MARK.size
        assert zlib.crc32(data[rank_file.MARK.size :][:length]) == crc
        again = rank_file.pack(2, packs[area](record), areas[area])
        assert rank_file.unpack(again, areas[area]) == record

    return Target(
        "rank_file", run, (m.rank_file.RankFileError,), check, page_mutation, frozenset({"torn", "json", "record"}),
        lambda got: f"{got[0]}, {len(str(got[1])) // 40}",
    )  # fmt: skip


# -- control -------------------------------------------------------------------------------------------------------
def same_json(one: Any, other: Any) -> bool:
    """Equal in value and JSON type: 1 is neither 1.0 nor true."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return type(one) is type(other) and one == other


def _within(raw: Any, full: Any) -> bool:
    """``full`` is ``raw`` with defaults filled in, and nothing of ``raw`` was changed or dropped."""
    if isinstance(raw, dict) and isinstance(full, dict):
        return raw.keys() <= full.keys() and all(_within(raw[key], full[key]) for key in raw)
    if isinstance(raw, list) and isinstance(full, list):
        return len(raw) == len(full) and all(map(_within, raw, full))
    if isinstance(full, float) and type(raw) is int:  # a number that may have a fraction and was sent without one
        return raw == full
    return same_json(raw, full)


def words_of(adapter: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(kinds, fields) that the models of a direction know."""
    schema = adapter.json_schema()
    models = [each for each in schema["$defs"].values() if "properties" in each]
    fields = {name for model in models for name in model["properties"]}
    kinds = {model["properties"]["kind"]["const"] for model in models if "kind" in model["properties"]}
    return tuple(sorted(kinds)), tuple(sorted(fields | {"surprise", "uid", "version"}))


_DIRECTIONS = {
    "to_daemon": ("negotiating", "TO_DAEMON", "ToDaemon"),
    "to_requester": ("negotiating", "TO_REQUESTER", "ToRequester"),
    "host_to_daemon": ("control", "HOST_TO_DAEMON", "HostToDaemon"),
    "daemon_to_host": ("control", "DAEMON_TO_HOST", "DaemonToHost"),
    "agent_to_controller": ("cluster", "TO_CONTROLLER", "ToController"),
    "controller_to_agent": ("cluster", "TO_AGENT", "ToAgent"),
    "operator_to_controller": ("ina_admin", "TO_CONTROLLER_ADMIN", "Request"),
    "user_to_manager": ("work_admin", "TO_MANAGER", "Request"),
    "tenant_to_manager": ("inc_admin", "TO_MANAGER", "ToManager"),
    "manager_to_inc_switch": ("inc_messages", "TO_SWITCH", "ToSwitch"),
    "inc_switch_to_manager": ("inc_messages", "FROM_SWITCH", "FromSwitch"),
    "manager_to_service": ("inc_messages", "TO_SERVICE", "ToService"),
    "service_to_manager": ("inc_messages", "FROM_SERVICE", "FromService"),
}


def _controls(m: Modules) -> list[Target]:
    return [_control(m, *names) for names in ((f"control_{key}", *value) for key, value in _DIRECTIONS.items())]


def _control(m: Modules, name: str, module: str, adapter_name: str, union_name: str) -> Target:
    adapter, union = (getattr(getattr(m, module), each) for each in (adapter_name, union_name))
    models = get_args(union) if isinstance(union, UnionType) else get_args(get_args(union)[0])

    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        assert type(got) in models
        packed = m.control.encode(got)
        assert m.control.decode(adapter, packed) == got
        key_value.check_entries(got)
        assert _within(orjson.loads(data), orjson.loads(packed)), "something was guessed at, or dropped"

    return Target(
        name, lambda data, _: m.control.decode(adapter, data), (errors.ControlError,), check,
        json_mutation(*words_of(adapter)), frozenset({"json", "version", "model"}), lambda got: str(got.kind),
    )  # fmt: skip


# -- tickets -------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def _ticket(m: Modules, folder: str) -> Iterator[Target]:
    """The message a requester shows on the fabric's socket; the number is how late it comes, in ns."""
    listener = m.fabric.LoopbackFabricListener(os.path.join(folder, "fabric.sock"))

    def run(data: bytes, numbers: Numbers) -> Any:
        book = listener.tickets = m.tickets.TicketBook()
        book.offer(TICKET, 4, 8192, 4096, 1000)
        book.offer(_OTHER, 1, 1, 1, 1000)
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, ours:
            theirs.send(data)
            return listener.take_ticket(ours, 1000 + numbers[0]), book

    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        (shown, offer), book = got
        assert data == shown == TICKET.encode() or data == shown == _OTHER.encode()
        assert numbers[0] <= 0
        assert (offer.slots, offer.payload_bytes) == ((4, 8192) if shown == TICKET.encode() else (1, 1))
        try:
            book.redeem(shown, 0)
        except errors.TicketRefused:
            assert len(book._offers) == 1
        else:
            raise AssertionError("a ticket was good twice")

    def mutate(noise: Any, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
        data, _ = words(noise, data, ())
        return data[:600], (noise.choice((-1000, -1, 0, 0, 0, 1, 1 << 40)),)

    words = text_mutation((TICKET.encode(), _OTHER.encode(), b"taken", b"\0", b"\n", b" ", b"\xff" * 300))
    try:
        refuses = (errors.TicketRefused, errors.PeerGone)
        codes = {"unknown ticket, or redeemed before", "the ticket has expired", "no ticket was received"}
        yield Target("ticket", run, refuses, check, mutate, frozenset(codes), lambda got: str(got[0][1].slots))
    finally:
        listener.close()


def _reply(m: Modules) -> Target:
    """The daemon's reply to a ticket; the number counts the descriptors beside it."""

    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        assert numbers == (3,)
        packed = b"taken" + got[0].to_bytes(4, "little") + b"".join(each.to_bytes(8, "little") for each in got[1:])
        assert packed == data

    def mutate(noise: Any, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
        data, _ = words(noise, data, ())
        return data[:64], (noise.choice((0, 1, 2, 3, 3, 3, 3)),)

    words = text_mutation((b"taken", b"refused", bytes(8), b"\xff" * 8, b"taken" + bytes(20), b""))
    codes = frozenset({"the daemon refused the ticket", "the daemon hung up"})
    return Target(
        "ticket_reply", lambda data, n: m.fabric.parse_taken(data, n[0]), (errors.TicketRefused,), check, mutate, codes
    )


# -- configuration -------------------------------------------------------------------------------------------------
def _sound(m: Modules, got: Any) -> None:
    """What the daemon does with an accepted configuration works, and the gate takes it again as it gave it."""
    names = [table.name for table in got.tenant]
    assert len(set(names)) == len(names) == len(got.tenant_specs())
    assert {lease.tenant for lease in got.lease} <= set(names)
    assert got.book_settings().lanes >= 1
    assert len(got.pins()) == len(got.lease)
    assert m.config.parse_config(got.model_dump(), "again") == got


def _config(m: Modules) -> Target:
    """Tables as the TOML reader gives them, written as JSON."""
    names = tuple(sorted({field for table in _tables(config.DaemonConfig) for field in table}))

    def run(data: bytes, numbers: Numbers) -> Any:
        return m.config.parse_config(json.loads(data), "fuzz")

    def check(data: bytes, numbers: Numbers, got: Any) -> None:
        raw = json.loads(data)
        assert raw.keys() <= got.model_dump().keys(), "an unknown key was passed over"
        _sound(m, got)

    json_words = json_mutation((), names)

    def mutate(noise: Any, data: bytes, numbers: Numbers) -> tuple[bytes, Numbers]:
        while True:  # only what is JSON: a table cannot be anything else
            spoilt, _ = json_words(noise, data, ())
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(json.loads(spoilt), dict):
                    return spoilt, numbers

    # It is read at a start or a reload, not for each message; two hundred faulty tables take some 10 ms.
    return Target("config", run, (m.config.ConfigError,), check, mutate, frozenset(), slow_ns=100_000_000)


def _tables(model: Any) -> Iterator[dict[str, Any]]:
    schema = model.model_json_schema()
    yield schema["properties"]
    for table in schema["$defs"].values():
        yield table["properties"]


@contextlib.contextmanager
def _toml(m: Modules) -> Iterator[Target]:
    """The file itself. Its reader is the standard library's, and it is read at the operator's word: not in 10 ms."""
    fd = os.memfd_create("fuzz.toml", os.MFD_CLOEXEC)

    def run(data: bytes, numbers: Numbers) -> Any:
        os.ftruncate(fd, 0)
        os.pwrite(fd, data, 0)
        return m.config.load_config(f"/proc/self/fd/{fd}")

    words = (
        b"[tenant]", b"[[tenant]]\n", b"name = ", b'"ada"', b"[leasing]\n", b"lanes = ", b"0x", b"1" * 4400, b"= {",
        b"}", b"[" * 1500, b"]", b'"""', b"'''", b"\\u", b"\xff", b"\n", b"#", b"1979-05-27T07:32:00", b"+99:99",
        b"inf", b"a.b.c", b"[limits]\n", b"[tls]\n", b'listen = "127.0.0.1:0"\n', b"max_jobs = ", b"\r\n", b",",
    )  # fmt: skip
    try:
        yield Target(
            "config_toml", run, (m.config.ConfigError,), lambda data, n, got: _sound(m, got), text_mutation(words),
            frozenset(), slow_ns=1_000_000_000,
        )  # fmt: skip
    finally:
        os.close(fd)
