"""libdoca_common: statuses, their texts, the runtime version (doca_error.h, doca_version.h)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from offpath.bindings.doca._abi_types import EXPERIMENTAL, STABLE, STATUS, TEXT, Function

PREFIX: Final = "DOCA_ERROR_"


class Status(IntEnum):
    """doca_error_t, as far as it is the same in all releases; later values are queried at run time."""

    SUCCESS = 0
    UNKNOWN = 1
    NOT_PERMITTED = 2
    IN_USE = 3
    NOT_SUPPORTED = 4
    AGAIN = 5
    INVALID_VALUE = 6
    NO_MEMORY = 7
    INITIALIZATION = 8
    TIME_OUT = 9
    SHUTDOWN = 10
    CONNECTION_RESET = 11
    CONNECTION_ABORTED = 12
    CONNECTION_INPROGRESS = 13
    NOT_CONNECTED = 14
    NO_LOCK = 15
    NOT_FOUND = 16
    IO_FAILED = 17
    BAD_STATE = 18
    UNSUPPORTED_VERSION = 19
    OPERATING_SYSTEM = 20
    DRIVER = 21
    UNEXPECTED = 22
    ALREADY_EXIST = 23
    FULL = 24
    EMPTY = 25
    IN_PROGRESS = 26
    TOO_BIG = 27
    AUTHENTICATION = 28
    BAD_CONFIG = 29
    SKIPPED = 30


FUNCTIONS: Final = (
    Function("doca_error_get_name", TEXT, (STATUS,), STABLE, "2.5"),
    Function("doca_error_get_descr", TEXT, (STATUS,), STABLE, "2.5"),
    Function("doca_version_runtime", TEXT, (), EXPERIMENTAL, "2.5"),
)
