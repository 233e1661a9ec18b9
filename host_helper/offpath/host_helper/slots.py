"""Slots, shared by both requesters: allocation, writing arrays into a slot, reading an answer as a result.

Sans-IO over the mapped regions: the callers ring and wait.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from offpath.bindings.errors import HeaderError, OffpathError, OptionRefused
from offpath.bindings.native import pack_request, parse_answer
from offpath.bindings.ports import RequesterSession, next_of
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.header import (
    ABSENT,
    DTYPE_CODES,
    FLAG_IDEMPOTENT,
    FLAG_PARAMETERS,
    FLAG_PAYLOAD_CRC,
    FLAG_SEQUENCE_END,
    FLAG_SEQUENCE_START,
    FLAG_STREAM,
    STRINGS,
    AnswerHeader,
    Stages,
    Tensor,
    pack_tensors,
)
from offpath.host_helper import parameters as of_requests
from offpath.host_helper import request_arrays
from offpath.host_helper.dtypes import numpy_dtype, wire_code
from offpath.host_helper.errors import PayloadTooLarge, RequestFailed
from offpath.host_helper.request_arrays import Array
from offpath.host_helper.strings import array_of

_ALIGN: Final = 64
_LAYOUTS_KEPT: Final = 256
_BUFFER_CHARS: Final = frozenset("?bBhHiIlLqQefd")
"""Type characters of the dtypes whose arrays `memoryview.cast` takes."""
_VOID: Final = np.dtype("V1").num
_OPTION_LIMITS: Final = (
    ("demand", 0xFFFF), ("priority", 0xFF), ("budget_ms", 0xFFFF_FFFF),
    ("sequence_id", (1 << 64) - 1),
)  # fmt: skip
_W = TypeVar("_W")


Taker = Callable[[tuple[Tensor, ...], memoryview], None]
"""Takes a result out of the answer's memory before the slot is freed: its tensors, and the bytes that their offsets
count in. They are the session's and must not be kept. An `OffpathError` that it raises becomes the request's end."""


@dataclass(frozen=True, slots=True)
class Result:
    """A completed request: the kernel's arrays (copies), the durations of its stages, and where it ran.

    ``batch``: a number that the results of all requests of one launch have; ``batch_rows``: the rows of that launch; 0:
    the request had one of its own.
    """

    arrays: tuple[NDArray[Any], ...]
    stages: Stages
    lease: int
    generation: int
    batch_rows: int = 0
    batch: int = 0

    @property
    def array(self) -> NDArray[Any]:
        """The only array of a kernel that returns one. Raises: ValueError: it returned none or several."""
        if len(self.arrays) != 1:
            raise ValueError(f"the kernel returned {len(self.arrays)} arrays; use .arrays")
        return self.arrays[0]


@dataclass(frozen=True, slots=True)
class Options:
    """Per-request options. ``demand`` 0: the kernel's own; ``budget_ms`` 0: no deadline. ``priority`` 0 to 255, the
    greater the more urgent: each step counts as ``leasing.priority_step_ms`` of waiting. ``sequence_id``: of its
    sequence, 0 for none; ``sequence_start``, ``sequence_end``: it is the first, or the last, request of it.
    ``parameters``: booleans, numbers and strings for a kernel that asks for them; at most 64, and 16 KiB as JSON.

    Raises: OptionRefused: not a whole number, out of the range of its header field, a start or end of no sequence, or
    other parameters.
    """

    demand: int = 0
    priority: int = 0
    budget_ms: int = 0
    is_idempotent: bool = False
    with_checksum: bool = False
    sequence_id: int = 0
    sequence_start: bool = False
    sequence_end: bool = False
    parameters: Mapping[str, of_requests.Value] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name, most in _OPTION_LIMITS:
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or not 0 <= value <= most:
                raise OptionRefused(f"{name} is not a whole number from 0 to {most}")
        if (self.sequence_start or self.sequence_end) and not self.sequence_id:
            raise OptionRefused("sequence_start and sequence_end need a sequence_id other than 0")
        if self.parameters:
            object.__setattr__(self, "parameters", of_requests.checked(self.parameters))

    @property
    def flags(self) -> int:
        """As in the header."""
        of_sequence = (FLAG_SEQUENCE_START if self.sequence_start else 0) | (
            FLAG_SEQUENCE_END if self.sequence_end else 0
        )
        others = (FLAG_IDEMPOTENT if self.is_idempotent else 0) | (FLAG_PAYLOAD_CRC if self.with_checksum else 0)
        return of_sequence | others | (FLAG_PARAMETERS if self.parameters else 0)


DEFAULT_OPTIONS: Final = Options()


def _result(arrays: tuple[NDArray[Any], ...], answer: AnswerHeader) -> Result:
    return Result(arrays, answer.stages, answer.lease, answer.generation, answer.batch_rows, answer.batch)


class SlotTable(Generic[_W]):
    """Slots of one session, each empty or with the waiter of the request in it."""

    def __init__(self, session: RequesterSession) -> None:
        self._session = session
        self._ids: dict[int, int] = {}
        self._free = list(range(session.slot_count - 1, -1, -1))
        self.waiters: dict[int, _W] = {}
        self._takers: dict[int, Taker] = {}
        self._streams: dict[int, int] = {}
        """By slot: how many answers of its stream were taken."""
        self._next_id = 1
        self._layouts: dict[tuple[Any, ...], tuple[bytes, int, tuple[int, ...]]] = {}

    def has_room(self) -> bool:
        """True when a slot is free."""
        return bool(self._free)

    def fill(
        self,
        kernel_id: int,
        arrays: Sequence[Array],
        options: Options,
        waiter: _W,
        taker: Taker | None = None,
        *,
        is_stream: bool = False,
    ) -> int:
        """Write a request into a free slot; the caller rings it. Returns the slot. ``arrays``: of
        `offpath.host_helper.request_arrays.as_arrays`.
        ``taker``: gets the result, and the outcome has no arrays then. ``is_stream``: it gets a stream of answers, see
        `take`.

        Raises: PayloadTooLarge: the arrays do not fit. TypeError: the wire has no code for a dtype. What a source
        raises. HeaderError: more arrays than a request has, or more dimensions.
        """
        if options.parameters:
            arrays = [*arrays, of_requests.packed(options.parameters)]
        tensors, nbytes, offsets = self._layout(arrays)
        session = self._session
        if nbytes > session.payload_bytes:
            raise PayloadTooLarge(f"{nbytes} bytes of arrays, the session's slots hold {session.payload_bytes}")
        slot = self._free[-1]
        view = session.payload_view(slot)
        for array, offset in zip(arrays, offsets, strict=True):
            if not array.nbytes:
                continue
            if not isinstance(array, (np.ndarray, np.generic)):  # numpy's scalars lie in the slot as arrays do
                array.read_into(view[offset : offset + array.nbytes])
            elif array.flags.c_contiguous:
                view[offset : offset + array.nbytes] = flat_bytes(array)
            else:
                room = np.frombuffer(view, array.dtype, array.size, offset)
                room.reshape(array.shape)[...] = array
        flags = (options.flags if options is not DEFAULT_OPTIONS else 0) | (FLAG_STREAM if is_stream else 0)
        payload_crc = zlib.crc32(view[:nbytes]) if options.with_checksum else 0
        header = pack_request(
            self._next_id, kernel_id, nbytes, tensors, flags, options.demand, options.priority, options.budget_ms,
            payload_crc, options.sequence_id,
        )  # fmt: skip
        self._ids[slot] = self._next_id
        self._next_id += 1
        session.write_header(slot, header, nbytes)
        self._free.pop()  # only now: a failure above must not take a slot
        self.waiters[slot] = waiter
        if taker is not None:
            self._takers[slot] = taker
        if is_stream:
            self._streams[slot] = 0
        return slot

    def abandon(self, slot: int) -> None:
        """Nobody waits for the request any more: a late answer frees the slot, and its taker is not called."""
        self._takers.pop(slot, None)

    def unanswered(self) -> list[tuple[int, int]]:
        """The ids of the requests in flight, and how many answers of the stream of each were taken."""
        return [(self._ids[slot], self._streams.get(slot, 0)) for slot in self.waiters]

    def is_stream(self, slot: int) -> bool:
        """Whether the request in the slot gets a stream of answers."""
        return slot in self._streams

    def next_of(self, slot: int) -> int:
        """The immediate that gives a slot back for the next answer of its stream, after `take` of one."""
        return next_of(slot, self._streams[slot])

    def resumed(self, session: RequesterSession, states: Sequence[tuple[int, str]]) -> list[tuple[_W, str]]:
        """Use the same memory over a new connection; ``states`` gives the state of each id. Requests whose answer will
        not be rung leave their slots; returns them with their state.
        """
        self._session = session
        by_id = {self._ids[slot]: slot for slot in self.waiters}
        ended = []
        for request_id, state in states:
            slot = by_id.get(request_id)
            if slot is not None and state not in ("running", "answered"):
                ended.append((self.waiters.pop(slot), state))
                self._takers.pop(slot, None)
                self._streams.pop(slot, None)
                self._free.append(slot)
        return ended

    def take(self, slot: int) -> tuple[_W | None, Result | OffpathError]:
        """Copy out the answer in ``slot`` and free the slot. An invalid answer, which is a fault of the daemon or of
        the worker, gives OUTCOME_UNKNOWN. If it is one of a stream and others follow, the slot stays taken; the caller
        then rings `next_of`.

        Raises: HeaderError: no request is waiting in the slot.
        """
        session = self._session
        waiter = self.waiters.get(slot)
        if waiter is None:
            raise HeaderError("slot", f"an answer for slot {slot}, which has no request")
        taker = self._takers.get(slot)
        try:
            answer = parse_answer(session.answer_header(slot), session.result_bytes)
            has_more = self._is_next(slot, answer)
        except HeaderError as broken:
            self._vacate(slot)
            return waiter, _invalid(broken)
        if not has_more:
            if slot in self._streams:
                taker = None  # the last answer of a stream has no result
            self._vacate(slot)
        if taker is not None and answer.status is Status.COMPLETED:
            try:
                taker(answer.tensors, session.result_view(slot, answer.result_bytes))
            except OffpathError as fault:
                return waiter, fault
            return waiter, _result((), answer)
        outcome: Result | OffpathError
        body = bytes(session.result_view(slot, answer.result_bytes))  # a copy: the slot is reused at once
        if answer.status is Status.COMPLETED:
            try:
                arrays = tuple(_array_in(body, each) for each in answer.tensors)
            except HeaderError as broken:
                return waiter, _invalid(broken)
            outcome = _result(arrays, answer)
        else:
            detail = body.decode("utf-8", "replace")
            outcome = RequestFailed(answer.status, answer.reason, answer.retry_after_ms, detail)
        return waiter, outcome

    def _vacate(self, slot: int) -> None:
        del self.waiters[slot]
        self._takers.pop(slot, None)
        self._streams.pop(slot, None)
        self._free.append(slot)

    def _is_next(self, slot: int, answer: AnswerHeader) -> bool:
        """Whether others follow this answer. Raises: HeaderError: it is not the next one of its stream."""
        taken = self._streams.get(slot)
        if taken is None:
            if answer.has_more:
                raise HeaderError("number", "an answer of a stream for a request that wants none")
            return False
        is_whole = answer.number == taken + answer.has_more and (answer.request_id == self._ids[slot])
        is_refused = answer.status is Status.RETRY_SAFE and taken > 0  # a second run would repeat what was taken
        if is_refused or (not is_whole and (answer.has_more or answer.status is Status.COMPLETED)):
            raise HeaderError("number", f"answer {answer.number} of a stream after {taken}")
        if answer.has_more:
            self._streams[slot] = answer.number
        return answer.has_more

    def _layout(self, arrays: Sequence[Array]) -> tuple[bytes, int, tuple[int, ...]]:
        """(packed descriptors, total bytes, offsets). Callers repeat their shapes, so layouts are cached."""
        key = tuple(_layout_key(a) for a in arrays)
        found = self._layouts.get(key)
        if found is not None:
            return found
        described = []
        at = 0
        for array in arrays:
            if array is request_arrays.ABSENT:
                described.append(Tensor(ABSENT, (), 0, 0))
                continue
            is_string = array.dtype.hasobject and not isinstance(array, np.ndarray)
            code = STRINGS if is_string else wire_code(array.dtype)
            if code is None:
                raise TypeError(f"dtype {array.dtype} is not supported; use {', '.join(DTYPE_CODES)} in native order")
            described.append(Tensor(code, array.shape, at, array.nbytes))
            at += (array.nbytes + _ALIGN - 1) // _ALIGN * _ALIGN
        end = max((each.offset + each.nbytes for each in described), default=0)
        if len(self._layouts) >= _LAYOUTS_KEPT:
            self._layouts.clear()
        layout = (pack_tensors(described), end, tuple(t.offset for t in described))
        self._layouts[key] = layout
        return layout


def flat_bytes(array: NDArray[Any]) -> memoryview:
    """The bytes of an array in C order that is not empty, without a copy."""
    if array.dtype.char in _BUFFER_CHARS:
        return array.data.cast("B")
    return array.reshape(-1).view(np.uint8).data


def _array_in(body: bytes, tensor: Tensor) -> NDArray[Any]:
    """Raises: HeaderError: it has no strings as its dims say, or numpy has no such array."""
    if tensor.dtype == STRINGS:
        return array_of(memoryview(body)[tensor.offset : tensor.offset + tensor.nbytes], tensor.dims)
    if tensor.dtype == ABSENT:
        raise HeaderError("dtype", "a result has no absent tensor")
    try:
        return np.ndarray(tensor.dims, numpy_dtype(tensor.dtype), body, tensor.offset)
    except ValueError as fault:  # a dim of 0 beside some whose product has more than 63 bits
        raise HeaderError("dims", f"{tensor.dims}: {fault}") from None


def _invalid(broken: HeaderError) -> RequestFailed:
    """The outcome of a request whose answer cannot be read."""
    return RequestFailed(Status.OUTCOME_UNKNOWN, Reason.NONE, 0, f"an invalid answer: {broken}")


def _layout_key(array: Array) -> tuple[Any, ...]:
    """What the array's descriptor depends on. All structured dtypes have one number, and strings have any length."""
    dtype = array.dtype
    if isinstance(array, np.ndarray):
        return (dtype.num if dtype.num != _VOID else dtype, dtype.isnative, array.shape)
    return (dtype, array.shape, array.nbytes)


def daemon_gone(detail: str) -> RequestFailed:
    """The outcome of an unanswered request after the daemon was lost: it may have started."""
    return RequestFailed(Status.OUTCOME_UNKNOWN, Reason.DAEMON_RESTARTED, 0, detail)
