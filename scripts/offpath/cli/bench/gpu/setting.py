"""The GPU that is measured or checked, and a forked process for each use of CUDA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from offpath.bindings import forked
from offpath.bindings.cuda.whole import visible
from offpath.bindings.errors import DeviceError
from offpath.bindings.gpu_folder import gpu_folder

ATTEMPT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Setting:
    """The GPU that is checked. ``uuid``: empty if CUDA shows none, for the reason in ``problem``. ``nbytes``: its
    memory. ``is_quick``: small counts."""

    uuid: str
    name: str
    nbytes: int
    is_emulated: bool
    is_quick: bool
    problem: str = ""

    def count(self, full: int, quick: int) -> int:
        """How often to do something: always ``quick`` on the emulator, whose times say nothing."""
        return quick if self.is_quick or self.is_emulated else full


def find(*, is_quick: bool) -> Setting:
    """The first GPU or MIG instance that CUDA shows this user."""
    try:
        found = visible()
    except DeviceError as fault:
        return Setting("", "", 0, bool(gpu_folder()), is_quick, str(fault))
    if not found:
        return Setting("", "", 0, False, is_quick, "CUDA shows no device")
    return Setting(found[0].uuid, found[0].name, found[0].nbytes, found[0].is_emulated, is_quick)


def in_child(what: str, function: Callable[[], Any], limit_s: float = ATTEMPT_S) -> Any:
    """``function`` in a forked process; its result must be JSON. Raises: DeviceError: see `forked.call`."""
    return orjson.loads(forked.call(lambda: orjson.dumps(function()).decode(), what, limit_s))
