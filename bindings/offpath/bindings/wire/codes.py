"""Terminal states and reasons as numbers on the wire. ``dpu_daemon`` maps the job book's own to these."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """The one terminal state of a request (docs/design.md, Guarantees)."""

    COMPLETED = 1
    FAILED = 2
    CANCELLED = 3
    EXPIRED = 4
    REJECTED = 5
    RETRY_SAFE = 6
    """It certainly never started."""
    OUTCOME_UNKNOWN = 7
    """It may have started."""


class Reason(IntEnum):
    """Why a request ended as it did. NONE belongs to COMPLETED."""

    NONE = 0
    # the request itself
    BAD_HEADER = 1
    UNKNOWN_KERNEL = 2
    BAD_DEMAND = 3
    PAYLOAD_TOO_LARGE = 4
    DUPLICATE_ID = 5
    GANG_UNSUPPORTED = 6
    BAD_SEQUENCE = 7
    SEQUENCE_UNKNOWN = 8
    # load and limits
    TENANT_QUEUE_FULL = 20
    DAEMON_FULL = 21
    DEADLINE_UNREACHABLE = 22
    NO_INSTANCE_FITS = 23
    TENANT_SHARE_LIMIT = 24
    NO_GPU_MODEL = 25
    NO_INSTANCE_MEMORY = 26
    KERNEL_NOT_PERMITTED = 27
    TOO_MANY_SEQUENCES = 28
    # events before the end
    DEADLINE_PASSED = 40
    CANCELLED_BY_REQUESTER = 41
    SESSION_CLOSED = 42
    DRAINING = 43
    JOURNAL_FAILED = 44
    TENANT_REMOVED = 45
    CANCELLED_BY_OPERATOR = 46
    KERNEL_GONE = 47
    SEQUENCE_LOST = 48
    # faults
    KERNEL_RAISED = 60
    RESULT_TOO_LARGE = 61
    PAYLOAD_CHECKSUM = 62
    COPY_FAILED = 63
    WORKER_LOST = 64
    HELPER_LOST = 65
    DAEMON_RESTARTED = 66
    KERNEL_OVERRAN = 67
    RESULT_NOT_SPLIT = 68
    STREAM_MISMATCH = 69
