"""A job of the kill tests: rounds on borrowed devices until the file ``stop`` is there.

Arguments: folder, name, demand, deadline in s, quorum in percent, how long a device works in s, and ``true`` if the job
uses all devices, borrowed or not: a planted bug. ``OFFPATH_COLLAB`` names the settings.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from offpath.bindings.errors import PeerGone
from offpath.host_helper.collab.borrower import Borrower, JobWish
from offpath.host_helper.collab.controller import LocalController
from offpath.host_helper.collab.settings import NodeTable, load

PATIENCE_S = 60.0


class Job:
    def __init__(self, folder: Path, name: str, demand: int, deadline_s: float, quorum: int, work_s: float) -> None:
        settings = load()
        assert settings is not None
        self.folder, self.name, self.work_s = folder, name, work_s
        wish = JobWish(name, demand, deadline_s, quorum_percent=quorum)
        self.borrower = Borrower(
            LocalController(settings), wish, settings.keys()[2], settings.prefix, settings.poll_s
        )  # fmt: skip

    def devices(self) -> Mapping[int, NodeTable]:
        """Those that live."""
        return {int(path.stem): NodeTable() for path in self.folder.glob("*.sock") if self._reached(path)}

    @staticmethod
    def _reached(path: Path) -> bool:
        with socket.socket(socket.AF_UNIX) as sock:
            return sock.connect_ex(str(path)) == 0

    def order(self, device: int, until: float) -> bool:
        """The device has worked. It takes no order after the end of its lease."""
        with socket.socket(socket.AF_UNIX) as sock:
            try:
                sock.connect(str(self.folder / f"{device}.sock"))
                sock.sendall(f"{self.name} {until} {self.work_s}".encode())
                return sock.recv(10) == b"good"
            except OSError:
                return False  # it was killed

    def work(self, takes_all: bool) -> None:
        lent = self.borrower.borrow(self.devices, PATIENCE_S)
        until = time.monotonic() + self.borrower.left_s
        used = sorted(self.devices()) if takes_all else lent
        with ThreadPoolExecutor(len(used)) as threads:
            orders = {threads.submit(self.order, device, until): device for device in used}
            for order in as_completed(orders):
                with contextlib.suppress(PeerGone):  # it is sent with the next one, or at the end of the round
                    self.borrower.report({orders[order]: order.result()})
        self.borrower.end()


def main() -> None:
    folder, name, demand, deadline_s, quorum, work_s, takes_all = sys.argv[1:]
    job = Job(Path(folder), name, int(demand), float(deadline_s), int(quorum), float(work_s))
    while not (job.folder / "stop").exists():
        job.work(takes_all == "true")
    job.borrower.close()


if __name__ == "__main__":
    main()
