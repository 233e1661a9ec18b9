"""A daemon under attack by ``eve``, while a witness of another tenant works all the time in its own process."""

from __future__ import annotations

import errno
import socket
from typing import Any

from offpath.bindings.wire.negotiating import Welcome

from .cluster import Cluster
from .clusters import NARROW
from .peers import Peer, RawSession, hello
from .processes import until

EVES_SESSIONS = 6
EVES_BYTES = 4 << 20


class Siege:
    """`before` and `after` each test: the witness lost nothing, the daemon holds what it held, quotas are whole."""

    def __init__(self, **tables: Any) -> None:
        """``tables`` of the configuration, such as ``tls``."""
        eve = {**NARROW, "max_sessions": EVES_SESSIONS, "max_slots": 8, "max_bytes": EVES_BYTES}
        tenants: dict[str, dict[str, Any]] = {"witness": NARROW, "eve": eve}
        self.cluster = Cluster(tenants, leasing={"keep_warm_ms": 50}, **tables)
        try:
            self.cluster.start_helper()
            token_file = str(self.cluster.folder / "witness.token")
            self.witness = self.cluster.start(
                "witness", "steady_main.py", self.cluster.address, "witness", token_file, "1", "4", "4", "echo"
            )
            assert self.witness.hear() == "ready"
            until(lambda: self.witness.ask("count").get("completed", 0) > 20)
        except BaseException:
            self.cluster.kill()
            raise
        self._fds = self.cluster.daemon.fds_at_rest()
        self._completed = 0

    def before(self) -> None:
        self._completed = self.witness.ask("count")["completed"]

    def after(self) -> None:
        counted = self.witness.ask("count")
        assert set(counted) == {"sent", "completed"}, counted
        until(lambda: self.witness.ask("count")["completed"] > self._completed + 10)
        assert self.cluster.daemon.is_alive
        until(lambda: self.cluster.daemon.open_fds() == self._fds)
        sessions = [until(self._one_more) for _ in range(EVES_SESSIONS)]
        for session in sessions:
            session.close()
        until(lambda: self.cluster.daemon.open_fds() == self._fds)

    def _one_more(self) -> RawSession | None:
        """A session of a full share of eve's memory, as soon as the last one is given back."""
        try:
            return self.session(slots=8, payload_bytes=32_768, result_bytes=16_384)
        except AssertionError:
            return None

    def lets_eve_in(self) -> bool:
        with Peer(self.cluster.address) as peer:
            peer.send_message(**hello("eve"))
            return isinstance(peer.hear(), Welcome)

    def session(self, **changes: Any) -> RawSession:
        """One of eve's."""
        return RawSession(self.cluster, "eve", **changes)

    def fabric_socket(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(15)
        path = str(self.cluster.run_folder / "fabric.sock")
        try:
            until(lambda: sock.connect_ex(path) != errno.EAGAIN)  # its backlog is full when we are faster than it
            sock.getpeername()
        except BaseException:
            sock.close()
            raise
        return sock

    def close(self) -> None:
        """The witness's last word: everything it sent was answered, and answered right."""
        counted = self.witness.ask("stop")
        assert counted == {"sent": counted["sent"], "completed": counted["sent"]}, counted
        assert self.witness.ended() == 0
        self.cluster.close()

    def kill(self) -> None:
        self.cluster.kill()
