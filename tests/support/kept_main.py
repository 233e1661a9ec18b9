"""A service of few words under a service manager: says what it was handed, then does what the lines it reads say."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from offpath.dpu_daemon.durability.inherited import take_inherited
from offpath.dpu_daemon.durability.notify import Notifier, watchdog_interval_s


def emit(**words: Any) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


def inode(fd: int) -> int:
    return os.fstat(fd).st_ino


def memfd(text: str) -> int:
    fd = os.memfd_create("kept")
    os.write(fd, text.encode())
    return fd


def main() -> None:
    inherited = take_inherited()
    notifier = Notifier.from_environment()
    signal.signal(signal.SIGHUP, lambda number, frame: emit(hangup=True))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    emit(
        pid=os.getpid(),
        listening={name: sock.getsockname() for name, sock in inherited.listening.items()},
        stored={n: [os.pread(fd, 4096, 0).decode() for fd in fds] for n, fds in inherited.stored.items()},
        inodes={n: [inode(fd) for fd in fds] for n, fds in inherited.stored.items()},
        leaks=[fd for fds in inherited.stored.values() for fd in fds if os.get_inheritable(fd)],
        watchdog_s=watchdog_interval_s(),
        faults=os.environ.get("OFFPATH_FAULTS", ""),
        variables=sorted(key for key in os.environ if key.startswith("LISTEN_")),
    )
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "ready":
            notifier.ready("as told")
            emit(ready=notifier.barrier(10.0))
        elif word == "store":
            fds = [memfd(text) for text in rest[1:]]
            notifier.store(rest[0], fds)
            emit(inodes=[inode(fd) for fd in fds])
        elif word == "store-twice":
            fd = memfd(rest[1])
            emit(
                sent=[notifier.store(rest[0], [fd]), notifier.store(rest[0], [os.dup(fd)])], done=notifier.barrier(10.0)
            )
        elif word == "forget":
            notifier.forget(rest[0])
            emit(forgotten=notifier.barrier(10.0))
        elif word == "accept":
            sock, _ = inherited.listening["negotiate"].accept()
            sock.setblocking(True)
            emit(heard=sock.recv(100).decode())
            sock.close()
        elif word == "fork":
            # Somebody else of our own: what it says must not count as ours.
            if (child := os.fork()) == 0:
                Notifier.from_environment().store("forged", [memfd("forged")])
                os._exit(0)
            os.waitpid(child, 0)
            emit(forked=child)
        elif word == "exit":
            os._exit(int(rest[0]))
        elif word == "die":
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
