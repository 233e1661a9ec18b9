"""What the messages of all channels are made of: the types of their fields, and the bounds."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints

from offpath.bindings import tokens

PROTOCOL_VERSION: Final = 3
MAX_KERNELS: Final = 256
"""Kernel names that a daemon stores at most; a welcome with that many fits a frame."""
MAX_OFFERED: Final = MAX_KERNELS
"""Kernels of one helper: a daemon stores no more names."""
MAX_LISTED: Final = 32
"""Kernels in one message of the host channel, which has 4 080 bytes; further ones follow. Also of one helper in a
daemon's status, which fits a frame with all helpers; further ones are counted."""
MAX_OFFERED_MODELS: Final = 1024
"""GPU models that all kernels of a helper name, so that its record in the journal has at most 100 KB."""
MAX_MODELS: Final = 32
"""GPU models of one kernel: those that a developer names, and as many under the names that drivers report."""
MAX_BATCH: Final = 4096
"""Rows of one batch."""
MAX_PARAMETERS_BYTES: Final = 16 * 1024
"""Of a request's parameters as JSON: a kernel reads them on each launch."""
MAX_PREFERRED: Final = 8
"""Preferred batch sizes of one kernel."""
MAX_QUEUE_DELAY_US: Final = 10_000_000
MAX_HELPERS: Final = 16
"""Helpers of a daemon. Its status, with a line for each, then fits a frame."""
MAX_GPUS: Final = 16
"""GPUs of one helper, all of which a gang may have."""
MAX_HELD: Final = 256
"""Instances that a reconnecting helper may hold. Their numbers alone, or its kernels' numbers, fit one host-channel
message."""
MAX_EXPORT_ITEMS: Final = 16
MAX_PART_CHARACTERS: Final = 1900
"""Limit of a part of a text; even fully escaped it fits a host-channel message."""
STRICT: Final = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)
"""Of all messages: no further fields, no conversion of types, and no refused input in errors."""
HIDING: Final = ConfigDict(hide_input_in_errors=True)
"""Refused input may hold a token, so errors do not show it."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/+-]*$")]
HelperName = Annotated[str, StringConstraints(min_length=1, max_length=32, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""A helper's name. It contains no "/", which separates it from the GPU's in a `GpuIdentity`."""
GpuIdentity = Annotated[str, StringConstraints(min_length=1, max_length=97, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/+-]*$")]
"""A GPU in the daemon: the names of its helper and of the GPU there, as ``helper/GPU-0``."""
Token = Annotated[str, StringConstraints(min_length=16, max_length=256, pattern=r"^[A-Za-z0-9_-]+$")]
"""A token made by the daemon or the helper."""
TenantToken = Annotated[
    str, StringConstraints(min_length=tokens.LEAST, max_length=tokens.MOST, pattern=r"^[\x20-\x7e]+$")
]
"""A token chosen by an operator: see `offpath.bindings.tokens`."""
U8 = Annotated[int, Field(ge=0, le=0xFF)]
U16 = Annotated[int, Field(ge=0, le=0xFFFF)]
U32 = Annotated[int, Field(ge=0, le=0xFFFF_FFFF)]
U64 = Annotated[int, Field(ge=0, le=0xFFFF_FFFF_FFFF_FFFF)]
RequestId = Annotated[int, Field(ge=1, le=0xFFFF_FFFF_FFFF_FFFF)]
"""As in request headers: 64 bits, and 0 is invalid."""
Gang = Literal[200, 300, 400, 500, 600, 700, 800, 900, 1000, 1100, 1200, 1300, 1400, 1500, 1600]
Demand = Annotated[int, Field(ge=1, le=100)] | Gang
"""A kernel's R in percent of a GPU; beyond 100: 100 for each GPU of a gang."""
BatchSize = Annotated[int, Field(ge=1, le=MAX_BATCH)]
"""Rows of a batch."""
MemoryBytes = Annotated[int, Field(ge=0, le=1 << 50)]
"""Memory of a GPU, or scrubbed in one. The limit keeps sums of reported sizes within 64 bits."""
LeaseNumber = U32
"""32 bits, as in an answer's header. With a generation, which never repeats, it identifies one lease."""
Lanes = Annotated[int, Field(ge=1, le=64)]
Start = Annotated[int, Field(ge=0, le=15)]
Slices = Annotated[int, Field(ge=1, le=16)]
Lane = Annotated[int, Field(ge=0, le=63)]
Term = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]
Part = Annotated[str, StringConstraints(min_length=0, max_length=MAX_PART_CHARACTERS, pattern=r"^[ -~]*$")]


def at_most(items: int) -> BeforeValidator:
    """Checks an object's item count before validation: pydantic applies its own limit after it has validated all
    items."""

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > items:
            raise ValueError(f"more than {items} items")
        return value

    return BeforeValidator(check)
