"""A tenant that rings doorbells as fast as they are taken: ADDRESS TENANT TOKEN_FILE SESSIONS. Says one line when
ready, then answers lines of its standard input: "credits" rings credits for slots that hold nothing, "cancels" submits
into a slot and cancels it, again and again, "quiet" stops when all that was rung is taken, "count" gives the doorbells
rung so far, "stop" ends it.

Doorbells go out many to a system call (sendmmsg(2)): what is judged beside it is the daemon, so it must cost the
machine's cores little itself.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import select
import socket
import struct
import sys
import termios
import time
from typing import Any

from offpath.bindings.ports import IMM_CANCEL, IMM_CREDIT, IMM_SUBMIT, immediate
from offpath.bindings.wire.header import DTYPE_CODES, Tensor, pack_request, pack_tensors
from offpath.host_helper.opening import open_session

AT_ONCE = 128
ROUNDS = {"credits": [immediate(IMM_CREDIT, 1)], "cancels": [immediate(IMM_SUBMIT, 0), immediate(IMM_CANCEL, 0)]}
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t)]


class _Message(ctypes.Structure):
    """struct mmsghdr of 64-bit Linux: struct msghdr, then the bytes sent, each with its padding."""

    _fields_ = [
        ("name", ctypes.c_void_p), ("name_bytes", ctypes.c_uint32), ("pieces", ctypes.POINTER(_Piece)),
        ("piece_count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_bytes", ctypes.c_size_t),
        ("flags", ctypes.c_size_t), ("sent", ctypes.c_size_t),
    ]  # fmt: skip


class Round:
    """Doorbells in their order, over and over."""

    def __init__(self, imms: list[int]) -> None:
        self.size = len(imms)
        self._words = (ctypes.c_uint32 * self.size)(*imms)
        self._pieces = [_Piece(ctypes.addressof(self._words) + 4 * n, 4) for n in range(self.size)]
        self._messages = (_Message * (AT_ONCE + self.size))()  # those of a round that is entered in its middle, too
        for n, message in enumerate(self._messages):
            message.pieces, message.piece_count = ctypes.pointer(self._pieces[n % self.size]), 1

    def ring(self, fd: int, at: int, most: int = AT_ONCE) -> int:
        """Ring from the doorbell ``at`` of the round on. Returns: how many were taken."""
        first = ctypes.byref(self._messages, at * ctypes.sizeof(_Message))
        sent: int = _LIBC.sendmmsg(fd, first, most, socket.MSG_DONTWAIT)
        if sent < 0 and ctypes.get_errno() != errno.EAGAIN:
            raise OSError(ctypes.get_errno(), "sendmmsg")
        return max(0, sent)


class Flood:
    """Sessions, and where in the round the doorbell of each is."""

    def __init__(self, address: str, tenant: str, token_file: str, sessions: int) -> None:
        self.rung = 0
        self._rounds = {kind: Round(imms) for kind, imms in ROUNDS.items()}
        self._round = self._rounds["credits"]
        self._at: dict[int, int] = {}
        self._bells: dict[int, socket.socket] = {}
        self._held: list[Any] = []
        self._poll = select.poll()
        one = pack_tensors([Tensor(DTYPE_CODES["float64"], (1,), 0, 8)])
        for _ in range(sessions):
            held = open_session(
                address, tenant=tenant, token_file=token_file, slots=2, payload_bytes=4096, result_bytes=4096
            )
            _, welcome, session = held
            kernel = next(kernel.kernel_id for kernel in welcome.kernels if kernel.name == "sleep")
            session.write_header(0, pack_request(request_id=1, kernel_id=kernel, payload_bytes=8, tensors=one), 8)
            self._at[session.fileno()] = 0
            self._bells[session.fileno()] = socket.socket(fileno=os.dup(session.fileno()))
            self._held.append(held)
        self._poll.register(sys.stdin.fileno(), select.POLLIN)
        self.begin("quiet")

    def begin(self, kind: str) -> None:
        """Ring this round from here on; with "quiet" none, once what was rung is taken and answered."""
        for fd in self._at:
            self._poll.register(fd, select.POLLIN if kind == "quiet" else select.POLLIN | select.POLLOUT)
        if kind != "quiet":
            self._round = self._rounds[kind]
            self._at = dict.fromkeys(self._at, 0)
            return
        for fd, at in self._at.items():
            if at:  # a job that is not cancelled would stay
                select.select([], [fd], [])
                assert self._round.ring(fd, at, 1) == 1
        while any(struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)))[0] for fd in self._at):
            for fd in self._at:
                self._read(fd)
            time.sleep(0.001)

    def step(self) -> bool:
        """Ring where a doorbell is taken; True: there is a line to read."""
        has_line = False
        for fd, event in self._poll.poll():
            if fd == sys.stdin.fileno():
                has_line = True
                continue
            if event & select.POLLIN:
                self._read(fd)
            if event & select.POLLOUT:
                taken = self._round.ring(fd, self._at[fd])
                self._at[fd] = (self._at[fd] + taken) % self._round.size
                self.rung += taken
        return has_line

    def close(self) -> None:
        for bell in self._bells.values():
            bell.close()
        for negotiation, _, session in self._held:
            session.close()
            negotiation.close()

    def _read(self, fd: int) -> None:
        """Drop the answers' doorbells."""
        try:
            while self._bells[fd].recv(8, socket.MSG_DONTWAIT):
                pass
        except BlockingIOError:
            return
        raise SystemExit("the daemon closed a session")


def main() -> None:
    _LIBC.prctl(1, 9)  # PR_SET_PDEATHSIG: it never outlives the test
    address, tenant, token_file, sessions = sys.argv[1:]
    flood = Flood(address, tenant, token_file, int(sessions))
    print(json.dumps("ready"), flush=True)
    while True:
        if not flood.step():
            continue
        line = os.read(sys.stdin.fileno(), 100).decode().strip()
        if line in ("credits", "cancels", "quiet"):
            flood.begin(line)
        print(json.dumps(flood.rung), flush=True)
        if line in ("stop", ""):
            flood.close()
            return


if __name__ == "__main__":
    main()
