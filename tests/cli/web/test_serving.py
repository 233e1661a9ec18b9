"""The page's server on its socket: who can connect, how many, and what the answers have."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra `web` is not installed here")

from offpath.cli.web import serving
from offpath.cli.web.listener import MOST_KNOWN, MOST_STRANGERS
from offpath.cli.web.serving import HANDSHAKE_S, IDLE_LOOKS, LOOK_S

from ...support.certificates import Authority
from ...support.command import offpath
from ...support.processes import BOUND_S, until
from ...support.web_process import Web

TOKEN = "t" * 24
ASYNCIO_S = 60.0


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    """Without a daemon."""
    made = Web("--runtime-dir", str(tmp_path), "--listen", "127.0.0.1:0", open_files=256)
    try:
        made.enter()
        yield made
        made.end()
    finally:
        made.kill()


def test_another_host_and_another_method_are_refused_on_the_wire(web: Web) -> None:
    for path, headers in (("/", {}), ("/nothing", {}), ("/api/state", {}), ("/", {"Host": "evil.example"})):
        names = {name.lower() for name in web.get(path, **headers)[2]}
        assert "content-security-policy" in names
        assert "server" not in names, "uvicorn's own name is not told"
    assert web.get("/", Host="evil.example")[0] == 421
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=BOUND_S)
    connection.request("POST", "/api/state", body=b"x" * 1000, headers={"Cookie": web.cookie})
    assert connection.getresponse().status == 405
    connection.close()


def test_connections_that_send_no_whole_request_are_ended(tmp_path: Path) -> None:
    """Nothing at all, the begin of a request, and the begin of a second one."""
    assert (LOOK_S, IDLE_LOOKS) == (5.0, 2)
    web = Web("--runtime-dir", str(tmp_path), "--listen", "127.0.0.1:0", shortened={f"{serving.__name__}.LOOK_S": 0.1})
    try:
        parts = (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET /api")
        held = [socket.create_connection(("127.0.0.1", web.port), timeout=BOUND_S) for _ in parts]
        for sock, sent in zip(held, parts, strict=True):
            sock.sendall(sent)
        for sock in held:
            with sock, contextlib.suppress(ConnectionResetError):
                while sock.recv(65536):  # raises TimeoutError if it stays open
                    pass
        web.end()
    finally:
        web.kill()


def silent(port: int, count: int) -> list[socket.socket]:
    """Connections that send nothing."""
    return [socket.create_connection(("127.0.0.1", port), timeout=BOUND_S) for _ in range(count)]


def still_open(held: list[socket.socket]) -> int:
    """How many of them the server has not closed."""
    count = 0
    for sock in held:
        with contextlib.suppress(ConnectionResetError):
            sock.setblocking(False)
            try:
                sock.recv(1)
            except BlockingIOError:
                count += 1
    return count


def test_connections_have_a_bound_and_those_that_end_make_room(web: Web) -> None:
    """The server may open 256 files: without the bound it has none left to connect to the daemon."""
    held = silent(web.port, 300)
    until(lambda: still_open(held) <= MOST_STRANGERS)
    assert (web.process.poll(), still_open(held)) == (None, MOST_STRANGERS)
    for sock in held:
        sock.close()
    until(lambda: answers(web))
    assert "no daemon answers" in web.state()["faults"]["daemon"]


def asking(port: int, request: bytes) -> socket.socket:
    """A connection that stays open after its answer."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=BOUND_S)
    ask_again(sock, request)
    return sock


def ask_again(sock: socket.socket, request: bytes) -> None:
    sock.settimeout(BOUND_S)
    sock.sendall(request)
    answer = http.client.HTTPResponse(sock)
    answer.begin()
    answer.read()
    assert answer.status == 200


def test_strangers_keep_no_operator_out(web: Web) -> None:
    """They need no session to ask for the page's files, again and again."""
    icon = b"GET /static/icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n"
    data = f"GET /api/state HTTP/1.1\r\nHost: localhost\r\nCookie: {web.cookie}\r\n\r\n".encode()
    before = asking(web.port, data)
    held = [asking(web.port, icon) for _ in range(MOST_STRANGERS + 5)]
    until(lambda: still_open(held[:5]) == 0)
    after = asking(web.port, data)
    held += silent(web.port, MOST_STRANGERS + 5)
    assert still_open([before, after]) == 2, "an operator's connections stay"
    for sock in (before, after):
        ask_again(sock, data)
    many = [asking(web.port, data) for _ in range(MOST_KNOWN)]
    until(lambda: still_open([before, after]) == 0)
    assert still_open(many) == MOST_KNOWN
    for sock in (before, after, *held, *many):
        sock.close()


def answers(web: Web) -> bool:
    try:
        return bool(web.get("/")[0] == 200)
    except (ConnectionError, http.client.HTTPException):
        return False


def test_an_address_that_others_reach_needs_https_and_names() -> None:
    refused = offpath("web", "run", "--listen", "0.0.0.0:0")
    assert (refused.code, "SSH tunnel" in refused.err) == (1, True)
    unnamed = offpath("web", "run", "--listen", "0.0.0.0:0", "--plain-http")
    assert (unnamed.code, "--name" in unnamed.err) == (1, True)
    assert "together" in offpath("web", "run", "--certificate", "a.pem").err
    taken = offpath("web", "run", "--listen", "192.0.2.1:1", "--plain-http")
    assert taken.code == 73, taken.err
    assert offpath("web", "run", "--listen", "nowhere").code == 2
    assert offpath("web", "run", "--interval", "0.1").code == 2


@contextlib.contextmanager
def secured(tmp_path: Path, shortened: dict[str, float] | None = None) -> Iterator[tuple[Web, ssl.SSLContext]]:
    """With a certificate and a token; what a client needs to trust it."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("dpu7", is_server=True)
    token = tmp_path / "web.token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    made = Web("--listen", "127.0.0.1:0", "--no-daemon", "--runtime-dir", str(tmp_path), "--token-file", str(token),
               "--certificate", certificate, "--key", key, shortened=shortened)  # fmt: skip
    try:
        yield made, ssl.create_default_context(cafile=authority.ca_file)
        made.end()
    finally:
        made.kill()


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[Web, ssl.SSLContext]]:
    """See `secured`."""
    with secured(tmp_path) as made:
        yield made


def test_with_a_certificate_the_page_is_served_by_https_and_its_cookie_is_for_https(
    secure: tuple[Web, ssl.SSLContext],
) -> None:
    web, trusted = secure
    assert re.fullmatch(r"https://127\.0\.0\.1:\d+/", web.ready["address"])
    assert web.ready["link"] is None
    connection = http.client.HTTPSConnection("127.0.0.1", web.port, timeout=BOUND_S, context=trusted)
    connection.request("GET", "/api/session", headers={"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    assert answer.status == 200
    assert "; Secure" in (answer.getheader("set-cookie") or "")
    connection.close()


def test_connections_without_a_tls_handshake_count_and_end(secure: tuple[Web, ssl.SSLContext], tmp_path: Path) -> None:
    """asyncio's own bound of a handshake is a minute."""
    web, _ = secure
    held = silent(web.port, MOST_STRANGERS + 50)
    until(lambda: still_open(held) <= MOST_STRANGERS)
    for sock in held:
        sock.close()
    assert HANDSHAKE_S == 10.0
    (hasty := tmp_path / "hasty").mkdir()
    with secured(hasty, {f"{serving.__name__}.HANDSHAKE_S": 0.3}) as (web, _):
        held = silent(web.port, 3)
        until(lambda: still_open(held) == 0, 0.9 * ASYNCIO_S)
        for sock in held:
            sock.close()


def test_what_cannot_be_used_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("")
    words = ["web", "run", "--listen", "127.0.0.1:0"]
    broken = offpath(*words, "--certificate", str(nothing), "--key", str(nothing))
    assert (broken.code, str(nothing) in broken.err, broken.out) == (73, True, "")
    readable = tmp_path / "web.token"
    readable.write_text("t" * 24)
    readable.chmod(0o644)
    assert "chmod 600" in offpath(*words, "--token-file", str(readable)).err
    with socket.create_server(("127.0.0.1", 0)) as sock:
        taken = offpath("web", "run", "--listen", f"127.0.0.1:{sock.getsockname()[1]}")
    assert (taken.code, "Address already in use" in taken.err) == (73, True)
