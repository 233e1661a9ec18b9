"""Starts the settings that a part measures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from offpath.cli.bench.compiled import NotBuilt
from offpath.cli.bench.measure import Cores, pin
from offpath.cli.bench.request_path.backend import Backend
from offpath.cli.bench.request_path.bare import Direct, Floor, Tcp
from offpath.cli.bench.request_path.floor_c import FloorC
from offpath.cli.bench.request_path.product import Offpath, Options

Makers = dict[str, Callable[[Cores], Backend]]


def floors() -> Makers:
    """The three floors, by name."""
    return {
        "floor": Floor,
        "floor_c": partial(FloorC, spins=False),
        "floor_c_spin": partial(FloorC, spins=True),
    }


def all_settings(options: Options) -> Makers:
    """Every setting; ``options`` for the daemons of 3 and 4."""
    return floors() | {
        "1": Tcp,
        "2": Direct,
        "3": partial(Offpath, "3", daemon_on_host=True, options=options),
        "4": partial(Offpath, "4", daemon_on_host=False, options=options),
    }


def opened(makers: Makers, cores: Cores, missing: dict[str, str]) -> dict[str, Backend]:
    """Start the settings; the requester (this process) is pinned to the host core.

    ``missing`` receives the reason for each that cannot be built here. Raises: OffpathError.
    """
    pin(cores.host)
    made: dict[str, Backend] = {}
    try:
        for name, make in makers.items():
            try:
                made[name] = make(cores)
            except NotBuilt as reason:
                missing[name] = str(reason)
    except BaseException:
        close(made)
        raise
    return made


def close(made: dict[str, Backend]) -> None:
    """End the settings' processes."""
    for backend in made.values():
        backend.close()
