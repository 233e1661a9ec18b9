"""Long sweeps in two processes or on Ray that can be interrupted: each finished piece is written as a line at once."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import Any, Final

from offpath.bindings.errors import OffpathError

_WORKERS: Final = 2
_LOOK_S: Final = 0.5


class SweepError(OffpathError):
    """The file of finished pieces cannot be used."""


def sweep(
    path: str, pieces: Sequence[tuple[str, dict[str, Any]]], work: Callable[..., dict[str, Any]], *,
    fresh: bool = False, engine: str = "local",
) -> list[dict[str, Any]]:  # fmt: skip
    """The results of ``work(**arguments)`` for each piece (key, arguments), in their order.

    Pieces that ``path`` has already are not run again; a line cut short by a kill is ignored. ``work`` runs in another
    process; ``engine``: of `ENGINES`. Raises: SweepError.
    """
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SweepError(f"{path}: another run writes it or is ending: use another --out") from None
            file.truncate(0 if fresh else _whole_bytes(path))
            done = _finished(path)
            missing = [piece for piece in pieces if piece[0] not in done]
            if missing:
                _ENGINES[engine](file, missing, work, done)
    except OSError as fault:
        raise SweepError(f"{path}: {fault.strerror}") from None
    return [done[key] for key, _ in pieces]


def _finished(path: str) -> dict[str, dict[str, Any]]:
    done: dict[str, dict[str, Any]] = {}
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                entry = json.loads(line)
                done[entry["key"]] = entry["result"]
            except (ValueError, KeyError, TypeError):
                continue
    return done


def _whole_bytes(path: str) -> int:
    """The file's length without a line that a kill cut short."""
    with open(path, "rb") as file:
        return file.read().rfind(b"\n") + 1


def _write(file: Any, key: str, result: dict[str, Any]) -> None:
    file.write(json.dumps({"key": key, "result": result}) + "\n")
    file.flush()


def _watch(parent: int) -> None:
    """End this worker when its parent is killed: it would wait for the next piece forever, and keep the file open."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _work(
    file: Any,
    pieces: Sequence[tuple[str, dict[str, Any]]],
    work: Callable[..., dict[str, Any]],
    done: dict[str, dict[str, Any]],
) -> None:
    begun = time.monotonic()
    with ProcessPoolExecutor(min(_WORKERS, len(pieces)), initializer=_watch, initargs=(os.getpid(),)) as pool:
        waiting = {pool.submit(work, **arguments): key for key, arguments in pieces}
        try:
            while waiting:
                finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    key = waiting.pop(future)
                    done[key] = future.result()
                    _write(file, key, done[key])
                    _progress(len(pieces) - len(waiting), len(pieces), begun, key)
        finally:
            for future in waiting:
                future.cancel()


def _progress(finished: int, count: int, begun: float, key: str) -> None:
    print(f"  {finished} of {count}, {time.monotonic() - begun:.0f} s: {key}", file=sys.stderr, flush=True)


def _work_on_ray(
    file: Any,
    pieces: Sequence[tuple[str, dict[str, Any]]],
    work: Callable[..., dict[str, Any]],
    done: dict[str, dict[str, Any]],
) -> None:
    """As `_work`, as tasks of a Ray cluster: that of RAY_ADDRESS, or one of this machine for the time of the sweep."""
    try:
        import ray
    except ImportError:
        raise SweepError("engine ray: Ray is not installed; offpath's extra `ray` has it") from None
    begun = time.monotonic()
    try:
        ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
    except Exception as fault:  # Ray raises what its transport does
        raise SweepError(f"engine ray: no cluster: {fault}") from None
    try:
        task = ray.remote(work)
        waiting = {task.remote(**arguments): key for key, arguments in pieces}
        while waiting:
            finished, _ = ray.wait(list(waiting))
            for reference in finished:
                key = waiting.pop(reference)
                try:
                    done[key] = ray.get(reference)
                except ray.exceptions.RayTaskError as fault:
                    raise fault.as_instanceof_cause() from None
                _write(file, key, done[key])
                _progress(len(pieces) - len(waiting), len(pieces), begun, key)
    finally:
        ray.shutdown()


_ENGINES: Final = {"local": _work, "ray": _work_on_ray}
ENGINES: Final = tuple(_ENGINES)
"""What runs the pieces: processes of this machine, or tasks of a Ray cluster."""
