"""Messages between devices and a collaboration controller (Venn): check-ins and results, one by one or in batches.

Over HTTP a body is one message, and so is its answer. Over ZeroMQ a gateway sends a `Batch` of them, and gets `Answers`
in the same order. A device sets ``sent_ms``, its clock in milliseconds since 1970; each of its messages has a later one
than the message before. One that is sent again unchanged has the same answer, until the lease ends.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import orjson
from pydantic import BaseModel, Field, StringConstraints, TypeAdapter

from offpath.bindings.wire.fields import HIDING, STRICT, U32, U64, at_most

MOST_BATCH: Final = 512
"""Messages of a batch."""
MOST_PROPERTIES: Final = 32
MOST_MESSAGE_BYTES: Final = 16 * 1024
"""Of one message over HTTP."""
MOST_BATCH_BYTES: Final = 512 * 1024
TOKEN_CHARACTERS: Final = 64
"""32 bytes, hexadecimal."""

DeviceName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
DeviceToken = Annotated[str, StringConstraints(min_length=TOKEN_CHARACTERS, max_length=TOKEN_CHARACTERS)]
PropertyName = Annotated[str, StringConstraints(min_length=1, max_length=64)]
"""Printable: the controller looks at the characters of names and versions once for each kind of devices."""
VersionText = Annotated[str, StringConstraints(min_length=1, max_length=39)]
"""One to four numbers of at most nine digits, as 14.2.1."""
Number = Annotated[int, Field(ge=0, le=1 << 53)]
"""Above 2^53 a JSON number is not exact."""
Milliseconds = Annotated[int, Field(ge=0, le=1 << 53)]
"""Since 1970."""
VERSION: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,3}", re.ASCII)
Numbers = Annotated[dict[PropertyName, Number], at_most(MOST_PROPERTIES)]
Versions = Annotated[dict[PropertyName, VersionText], at_most(MOST_PROPERTIES)]
Labels = Annotated[list[PropertyName], Field(max_length=MOST_PROPERTIES)]


def version_of(text: str) -> tuple[int, ...]:
    """The numbers of a `VersionText`. Raises: ValueError: it is none."""
    if VERSION.fullmatch(text) is None:
        raise ValueError("a version has one to four numbers of at most nine digits, as 14.2.1")
    return tuple(map(int, text.split(".")))


class _Message(BaseModel):
    model_config = STRICT


class _FromDevice(_Message):
    device: DeviceName
    token: DeviceToken
    sent_ms: Milliseconds


class CheckIn(_FromDevice):
    """A device is ready to work. What it is: numbers (memory in MiB, a benchmark's points), versions and labels."""

    kind: Literal["checkin"] = "checkin"
    numbers: Numbers = {}
    versions: Versions = {}
    labels: Labels = []


class Result(_FromDevice):
    """A device has finished its work for the lease, or gives up (``is_good`` false)."""

    kind: Literal["result"] = "result"
    lease: U64
    is_good: bool


class Batch(_Message):
    """What a gateway sends for its devices. ``number``: repeated in the answer."""

    kind: Literal["batch"] = "batch"
    number: U64
    items: Annotated[
        list[Annotated[CheckIn | Result, Field(discriminator="kind")]], Field(min_length=1, max_length=MOST_BATCH)
    ]


class Leased(_Message):
    """The device works for this round of this job until then."""

    kind: Literal["lease"] = "lease"
    lease: U64
    job: str
    round: U32
    expires_ms: Milliseconds
    now_ms: Milliseconds


class NoJob(_Message):
    """No job for the device. ``why``: ``idle``: none needs it now; ``spent``: it has worked today. It checks in again
    after ``retry_ms`` at the earliest."""

    kind: Literal["no_job"] = "no_job"
    why: Literal["idle", "spent"]
    retry_ms: U64
    now_ms: Milliseconds


class Recorded(_Message):
    """The result is counted and on the disk."""

    kind: Literal["recorded"] = "recorded"
    lease: U64
    now_ms: Milliseconds


class Refusal(_Message):
    """The message was refused. ``code`` is stable. ``retry_ms`` 0: the same message again is refused again."""

    kind: Literal["refused"] = "refused"
    code: str
    detail: str
    retry_ms: U64
    now_ms: Milliseconds


Answer = Leased | NoJob | Recorded | Refusal


class Answers(_Message):
    """Of a batch, in its order."""

    kind: Literal["answers"] = "answers"
    number: U64
    items: list[Annotated[Answer, Field(discriminator="kind")]]


def body_of(answer: Answer | Answers) -> bytes:
    """The answer as JSON. Its fields are written as they are, without a copy of them: they are numbers and texts."""
    return orjson.dumps(answer, default=vars)


CHECK_IN: Final[TypeAdapter[CheckIn]] = TypeAdapter(CheckIn)
RESULT: Final[TypeAdapter[Result]] = TypeAdapter(Result)
FROM_GATEWAY: Final[TypeAdapter[Batch]] = TypeAdapter(Batch)
TO_DEVICE: Final[TypeAdapter[Answer]] = TypeAdapter(Annotated[Answer, Field(discriminator="kind")], config=HIDING)
TO_GATEWAY: Final[TypeAdapter[Answers | Refusal]] = TypeAdapter(
    Annotated[Answers | Refusal, Field(discriminator="kind")], config=HIDING
)
