"""A device of the kill tests: it works for every job that orders it, also for several at once, and notes when.

Arguments: its socket, and its file of lines ``start``, ``begin ORDER JOB`` and ``end ORDER``, each with the time
of the monotonic clock in front. An order is ``JOB UNTIL WORK_S``; it stops at UNTIL, when the lease has ended.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time


def main() -> None:
    place, journal = sys.argv[1:]
    note = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def noted(at: float, text: str) -> None:
        os.write(note, f"{at} {text}\n".encode())

    def serve(number: int, peer: socket.socket) -> None:
        with peer:
            order = peer.recv(200).decode().split()
            began = time.monotonic()
            if not order or began >= float(order[1]):
                return
            noted(began, f"begin {number} {order[0]}")
            ends = min(began + float(order[2]), float(order[1]))
            time.sleep(max(0.0, ends - time.monotonic()))
            noted(ends, f"end {number}")
            try:
                peer.sendall(b"good")
            except OSError:
                return  # the job's process was killed

    noted(time.monotonic(), "start")
    if os.path.exists(place):
        os.unlink(place)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(place)
        sock.listen(64)
        number = 0
        while True:
            number += 1
            peer, _ = sock.accept()
            threading.Thread(target=serve, args=(number, peer), daemon=True).start()


if __name__ == "__main__":
    main()
