"""Who gets in by ZeroMQ: what libzmq itself does in each set-up, and what our listener does, as one table.

CURVE alone authenticates no client: libzmq without a handler accepts any key, also with a domain set. The table is
held against real sockets, so that a release of libzmq that changes a row is noticed; it is printed with ``-s``.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
import zmq
from zmq.auth.thread import ThreadAuthenticator

from offpath.bindings.errors import HostMessageError, KeyFileRefused, KeyNotListed, NobodyAllowed, PeerGone
from offpath.bindings.zeromq.authority import Authority
from offpath.bindings.zeromq.connection import ZmqConnector
from offpath.bindings.zeromq.keys import make_keys, read_allowed, read_secret
from offpath.bindings.zeromq.listener import ZmqListener

from ...support.processes import until

BOUND_S: Final = 10.0
SERVER: Final = zmq.curve_keypair()
LISTED: Final = zmq.curve_keypair()
FOREIGN: Final = zmq.curve_keypair()
OPEN: Final = b"\x01\x01\x00\x00" + bytes(4) + b"8 bytes!"
"""What a host process says first; to libzmq alone it is any message."""

# set-up, client → does its message arrive?
TABLE: Final = [
    ("no handler", "listed", True),
    ("no handler", "foreign", True),
    ("no handler", "NULL", False),
    ("no handler", "PLAIN", False),
    ("zap_domain alone", "foreign", True),
    ("zap_domain, ENFORCE_DOMAIN", "listed", False),
    ("zap_domain, ENFORCE_DOMAIN", "foreign", False),
    ("handler unconfigured", "listed", False),
    ("handler unconfigured", "foreign", False),
    ("handler with ALLOW_ANY", "foreign", True),
    ("handler with ALLOW_ANY", "NULL", False),
    ("handler with a list", "listed", True),
    ("handler with a list", "foreign", False),
    ("our listener", "listed", True),
    ("our listener", "foreign", False),
    ("our listener", "NULL", False),
    ("our listener", "PLAIN", False),
]
_FAILED: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
)  # fmt: skip


@contextmanager
def plain_server(setup: str) -> Iterator[tuple[str, Any]]:
    """A ROUTER as a programmer might set it up: (address, what it received so far)."""
    context: zmq.Context[Any] = zmq.Context()
    handler = ThreadAuthenticator(context) if setup.startswith("handler") else None
    try:
        if handler is not None:
            handler.start()
            if setup.endswith("ALLOW_ANY"):
                handler.configure_curve(domain="*", location=zmq.auth.CURVE_ALLOW_ANY)
            elif setup.endswith("a list"):
                handler.configure_curve_callback(domain="offpath", credentials_provider=_Listed())
        sock = context.socket(zmq.ROUTER)
        sock.curve_server = True
        sock.curve_secretkey = SERVER[1]
        if setup.startswith("zap_domain") or handler is not None:
            sock.setsockopt(zmq.ZAP_DOMAIN, b"offpath")
        if setup.endswith("ENFORCE_DOMAIN"):
            sock.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        port = sock.bind_to_random_port("tcp://127.0.0.1")
        yield f"tcp://127.0.0.1:{port}", lambda: sock.poll(0) != 0 and sock.recv_multipart()[-1] == OPEN
    finally:
        if handler is not None:
            handler.stop()
        context.destroy(0)


class _Listed:
    def callback(self, domain: str, key: bytes) -> bool:
        """What pyzmq's handler asks."""
        return key == LISTED[0]


@contextmanager
def our_server(setup: str) -> Iterator[tuple[str, Any]]:
    listener = ZmqListener("tcp://127.0.0.1:*", SERVER[1], {LISTED[0]: "host-a"})
    made = []

    def arrived() -> bool:
        if (connection := listener.accept()) is not None:
            made.append(connection)
        return bool(made)

    try:
        yield listener.address, arrived
    finally:
        for connection in made:
            assert connection.peer == "host-a"
            connection.close()
        listener.close()


@contextmanager
def client(kind: str, address: str) -> Iterator[Any]:
    """(how its connection stands: the last event that says so, or 0)"""
    context: zmq.Context[Any] = zmq.Context()
    try:
        sock = context.socket(zmq.DEALER)
        sock.setsockopt(zmq.RECONNECT_IVL, -1)
        if kind == "PLAIN":
            sock.plain_username, sock.plain_password = b"host-a", b"password"
        elif kind != "NULL":
            sock.curve_serverkey = SERVER[0]
            sock.curve_publickey, sock.curve_secretkey = LISTED if kind == "listed" else FOREIGN
        monitor = sock.get_monitor_socket(_FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        sock.connect(address)
        with suppress(zmq.Again):  # refused before it could send: a send that waits would wait forever
            sock.send(OPEN, zmq.DONTWAIT)
        yield lambda: int.from_bytes(monitor.recv_multipart()[0][:2], "little") if monitor.poll(0) else 0
        sock.disable_monitor()
        monitor.close(0)
    finally:
        context.destroy(0)


def arrives(setup: str, kind: str) -> bool:
    """Whether the client's message is there, or its handshake has failed and the message can never be."""
    make = our_server if setup == "our listener" else plain_server
    with make(setup) as (address, arrived), client(kind, address) as event:
        end = time.monotonic() + BOUND_S
        while time.monotonic() < end:
            if arrived():
                return True
            if event() & _FAILED:
                return bool(arrived())
            select.select([], [], [], 0.001)
    raise AssertionError(f"{setup}, {kind}: neither in nor out within {BOUND_S:g} s")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("setup", "kind", "is_let_in"), TABLE, ids=lambda value: str(value))
def test_the_table_of_who_gets_in(setup: str, kind: str, is_let_in: bool) -> None:
    found = arrives(setup, kind)
    print(f"\n{setup:28} {kind:8} {'gets in' if found else 'refused'}", end="")
    assert found is is_let_in


def test_a_start_without_anybody_on_the_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hosts").mkdir()
    with pytest.raises(NobodyAllowed):
        read_allowed(str(tmp_path / "hosts"))
    (tmp_path / "list").write_text("# nobody yet\n")
    with pytest.raises(NobodyAllowed):
        read_allowed(str(tmp_path / "list"))
    with pytest.raises(NobodyAllowed):
        ZmqListener("tcp://127.0.0.1:*", SERVER[1], {})


def test_without_the_handler_nobody_gets_in_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second line: were the handler forgotten, the enforced domain would refuse all."""

    def made(self: Any, context: Any, domain: str, allowed: Any, is_full: Any) -> None:
        self._sock = context.socket(zmq.REP)
        self.refused = 0

    monkeypatch.setattr(Authority, "__init__", made)
    assert arrives("our listener", "listed") is False


def test_a_key_of_another_daemon_is_told_so_and_a_listed_one_has_its_name(tmp_path: Path) -> None:
    secret, public = make_keys("daemon", str(tmp_path))
    (tmp_path / "hosts").mkdir()
    key, _ = make_keys("host-a", str(tmp_path / "hosts"))
    other, _ = make_keys("other", str(tmp_path))
    listener = ZmqListener("tcp://127.0.0.1:*", read_secret(secret), read_allowed(str(tmp_path / "hosts")))

    def tried(connector: ZmqConnector) -> Any:
        with ThreadPoolExecutor(1) as aside:
            coming = aside.submit(connector.connect, 3.0)
            while not coming.done():
                if (connection := listener.accept()) is not None:
                    names.append(connection.peer)
            return coming

    names: list[str] = []
    assert isinstance(tried(ZmqConnector(listener.address, other, public)).exception(), KeyNotListed)
    wrong_server = tried(ZmqConnector(listener.address, key, str(tmp_path / "other.pub"))).exception()
    assert type(wrong_server) is PeerGone, "nobody has looked at our key"
    assert "the daemon's public key may be wrong" in str(wrong_server)
    assert names == []
    tried(ZmqConnector(listener.address, key, public)).result().close()
    assert names == ["host-a"]
    assert listener.refused == 1
    for connection in list(listener._connections.values()):
        connection.close()
    listener.close()


@contextmanager
def listening() -> Iterator[ZmqListener]:
    listener = ZmqListener("tcp://127.0.0.1:*", SERVER[1], {LISTED[0]: "host-a"})
    try:
        yield listener
    finally:
        for connection in list(listener._connections.values()):
            connection.close()
        listener.close()


def test_a_session_ends_when_its_name_has_another_key() -> None:
    with listening() as listener, client("listed", listener.address):
        connection = until(listener.accept, BOUND_S)
        assert connection.receive() is None
        listener.allow({FOREIGN[0]: "host-a"})
        with pytest.raises(HostMessageError, match="no longer listed"):
            connection.receive()


def test_no_session_begins_with_a_key_that_was_replaced_after_the_handshake() -> None:
    with listening() as listener, client("listed", listener.address) as event:
        until(lambda: listener._router.authority.serve() or event() & zmq.EVENT_HANDSHAKE_SUCCEEDED, BOUND_S)
        listener.allow({FOREIGN[0]: "host-a"})
        until(lambda: listener.accept() or listener.cut_off, BOUND_S)
        assert not listener._connections


def test_a_pair_that_cannot_be_made_whole_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "ada.pub").write_text("somebody's\n")
    with pytest.raises(KeyFileRefused, match=r"ada\.pub"):
        make_keys("ada", str(tmp_path))
    assert [each.name for each in tmp_path.iterdir()] == ["ada.pub"]
    assert (tmp_path / "ada.pub").read_text() == "somebody's\n"
