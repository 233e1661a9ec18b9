"""Real ranks over gloo for the tests of the INA runtime: started once, told what to do many times."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from offpath.host_helper.ina.folder import RankFileFolder
from offpath.sched.ina.protocol.records import EpochRecord

from .processes import Process

_FOR_S = 60.0


class Job:
    """``ranks`` processes of `ina_rank_main`."""

    def __init__(self, folder: Path, ranks: int, *backend: str, environment: dict[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.ranks = folder, ranks
        self.processes = [
            Process(
                f"rank{rank}", folder, "ina_rank_main.py", str(folder / "store"), str(rank), str(ranks), *backend,
                environment={"OMP_NUM_THREADS": "1", **(environment or {})},
            )
            for rank in range(ranks)
        ]  # fmt: skip
        for each in self.processes:
            assert each.hear(_FOR_S) == {"ready": True}

    def tell(self, do: str, **said: Any) -> None:
        for each in self.processes:
            each.tell(json.dumps({"do": do, **said}))

    def hear(self) -> list[dict[str, Any]]:
        return [each.hear(_FOR_S) for each in self.processes]

    def ask(self, do: str, **said: Any) -> list[dict[str, Any]]:
        """Without agents: nothing is granted, all they need is said before."""
        self.tell(do, **said)
        found = self.hear()
        return self.hear() if "incarnation" in found[0] else found

    def begin(self, do: str, **said: Any) -> int:
        """They are at it; the job's incarnation."""
        self.tell(do, **said)
        (incarnation,) = {each["incarnation"] for each in self.hear()}
        return int(incarnation)

    def close(self) -> None:
        for each in self.processes:
            each.kill()


class Agents:
    """What agents and helpers do for a job's ranks, with a folder for each rank: an epoch may reach one and not
    another."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.directories = [str(folder / f"ina{rank}") for rank in range(ranks)]
        self.folders = [RankFileFolder(each) for each in self.directories]

    def publish(self, epoch: EpochRecord, *ranks: int) -> None:
        """To these ranks, or to all."""
        for rank in ranks or range(len(self.folders)):
            self.folders[rank].poll()
            self.folders[rank].publish(epoch)

    def applied(self) -> list[int]:
        """By rank; -1: it has ended."""
        for each in self.folders:
            each.poll()
        return [each.states()[0].applied if each.states() else -1 for each in self.folders]

    def wait(self, claim: Callable[[list[int]], bool], within_s: float = _FOR_S) -> list[int]:
        end = time.monotonic() + within_s
        while not claim(applied := self.applied()):
            assert time.monotonic() < end, applied
            time.sleep(0.01)
        return applied

    def close(self) -> None:
        for each in self.folders:
            each.close()


@contextlib.contextmanager
def meanwhile(run: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
