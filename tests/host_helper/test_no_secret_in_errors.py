"""No error of the client, and no traceback or repr on its way, has a token or a key in it."""

from __future__ import annotations

import math
import os
import re
import socket
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offpath.bindings.errors import ControlError, OffpathError, OptionRefused, TokenRefused
from offpath.bindings.tokens import read_token_file
from offpath.bindings.wire import control, negotiating
from offpath.dpu_daemon.config import ConfigError, Sources, read_token
from offpath.host_helper import AsyncRequester, Options, Tls, connect

from ..support.certificates import Authority

SECRET = "s3cr3t+Zq/ Vw=9x~|{tenant}"
"""Of the whole alphabet that a token may have."""


def shown(fault: BaseException) -> str:
    """All that a program could print of it: text, repr, and the traceback with every cause and context."""
    chain: list[BaseException] = [fault]
    while (more := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(more)
    texts = [f"{each!s} {each!r} {getattr(each, '__notes__', '')}" for each in chain]
    return "\n".join([*texts, "".join(traceback.format_exception(fault))])


def file(tmp_path: Path, content: bytes, mode: int = 0o600) -> str:
    path = tmp_path / f"file{len(list(tmp_path.iterdir()))}"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


BAD_TOKENS = {
    "too long": (SECRET * 20).encode(),
    "two lines": f"{SECRET}\n{SECRET}".encode(),
    "not ASCII": f"{SECRET}é".encode(),
    "a control character": f"{SECRET}\x07".encode(),
    "NUL": f"{SECRET}\0".encode(),
    "a huge file": (SECRET + "\n").encode() + b" " * 5000,
    "not UTF-8": SECRET.encode() + b"\xff\xfe",
}


@pytest.mark.parametrize("content", BAD_TOKENS.values(), ids=BAD_TOKENS)
def test_a_token_file_that_is_refused_is_not_quoted_on_either_side(tmp_path: Path, content: bytes) -> None:
    path = file(tmp_path, content)
    for read, kind in ((read_token_file, TokenRefused), (read_token, ConfigError)):
        with pytest.raises(kind) as refused:  # type: ignore[call-overload]
            read(path)
        assert path in str(refused.value)
        assert SECRET not in shown(refused.value)


TOKENS = {
    "hex": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822c",
    "URL-safe": "tB3_xYw-9QkLmN0pRsTuVw",
    "base64 with slashes": "q/1ZbX/9kTtVd0l+eWmP7rGhJ2aYc5Ns",
    "a slash first": "/1ZbX9kTtVd0l+eWmP7rGhJ2aYc5Ns",
    "of the whole alphabet": SECRET,
    "longer than a name may be": "x1y2" * 100,
    "words with dots": "correct.horse.battery.staple",
    "the end of a file's name": "aB3+x9Kq2Lm8Zt7w.prod",
}


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS)
def test_a_token_given_as_the_path_of_its_file_is_not_shown(tmp_path: Path, token: str) -> None:
    """By a requester, and in a configuration, where it becomes a path in the configuration's folder."""
    for given in (token, str(tmp_path / token)):
        for read, kind in ((read_token_file, TokenRefused), (read_token, ConfigError)):
            with pytest.raises(kind) as refused:  # type: ignore[call-overload]
                read(given)
            assert token.strip("/") not in shown(refused.value)
            assert "names no file" in str(refused.value)
    config = tmp_path / "offpathd.toml"
    config.write_text(f"[[tenant]]\nname = 'ada'\ntoken_file = '{token}'\n")
    with pytest.raises(ConfigError) as faulty:
        Sources(str(config)).read()
    assert token.strip("/") not in shown(faulty.value)
    assert "tenant ada, line 3" in str(faulty.value)
    with pytest.raises(OffpathError) as fault:
        connect(tmp_path, tenant="ada", token_file=token)
    assert token.strip("/") not in shown(fault.value)


def test_a_path_that_cannot_be_a_token_is_shown(tmp_path: Path) -> None:
    (tmp_path / "folder-of-all-tokens").mkdir()
    for path in (tmp_path / "vision.token", tmp_path / "the-token-of-vision-and-speech.txt", Path("vision.token"),
                 tmp_path / "folder-of-all-tokens"):  # fmt: skip
        with pytest.raises(TokenRefused, match=re.escape(str(path))):
            read_token_file(str(path))


def test_both_sides_take_every_printable_line_of_16_to_256_characters(tmp_path: Path) -> None:
    printable = "".join(map(chr, range(0x20, 0x7F)))
    for token in (SECRET, printable.strip(), "+/" * 8, "x" * 256, "\"quoted' and \\ back", "a b c d e f g h i"):
        for around in ("{}", "{}\n", "{}\r\n", " {}\t\n\n"):
            path = file(tmp_path, around.format(token).encode())
            assert read_token_file(path) == read_token(path) == token
        hello = negotiating.Hello(tenant="ada", token=token, slots=1, payload_bytes=1, result_bytes=1)
        assert control.decode(negotiating.TO_DAEMON, control.encode(hello)) == hello


def test_a_token_file_that_is_a_pipe_a_folder_or_absent_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "absent", Path("/dev/zero"), tmp_path / "token\0"):
        for read, kind in ((read_token_file, TokenRefused), (read_token, ConfigError)):
            with pytest.raises(kind):  # type: ignore[call-overload]
                read(str(path))


def client_faults(tmp_path: Path) -> dict[str, Callable[[], Any]]:
    good, pem = file(tmp_path, SECRET.encode()), file(tmp_path, SECRET.encode())
    tls = Tls(pem, pem, pem)

    def asked(**more: Any) -> Callable[[], Any]:
        return lambda: connect(tmp_path, **{"tenant": "ada", "token_file": good, **more})

    return {
        "nobody listens": asked(),
        "a tenant that is none": asked(tenant="white space"),
        "a secret as the tenant": asked(tenant=SECRET),
        "a tenant of another type": asked(tenant=[SECRET]),
        "no slots": asked(slots=0),
        "slots of another type": asked(slots=SECRET),
        "a negative payload": asked(payload_bytes=-1),
        "a huge result": asked(result_bytes=1 << 80),
        "a float for a size": asked(payload_bytes=1.5, result_bytes=SECRET),
        "a token file that others may read": asked(token_file=file(tmp_path, SECRET.encode(), 0o644)),
        "an address of no kind": lambda: connect(SECRET, tenant="ada", token_file=good),
        "an address with NUL": lambda: connect(f"unix:{SECRET}\0", tenant="ada", token_file=good),
        "TLS without keys": lambda: connect("tls:localhost:1"),
        "TLS with a secret for a port": lambda: connect(f"tls:localhost:{SECRET}", tls=tls),
        "TLS with files that are no keys": lambda: connect("tls:localhost:1", tls=tls),
        "TLS with no files": lambda: connect("tls:localhost:1", tls=Tls("/absent", pem, pem)),
        "TLS with an empty name": lambda: connect("tls:localhost:1", tls=Tls(pem, pem, pem, "")),
        "TLS with no name": lambda: connect("tls:localhost:1", tls=Tls(pem, pem, pem, None)),  # type: ignore[arg-type]
        "a priority that is text": lambda: Options(priority=SECRET),  # type: ignore[arg-type]
        "a demand too large": lambda: Options(demand=1 << 20),
    }


def test_whatever_a_caller_gets_wrong_is_a_typed_error_without_a_secret(tmp_path: Path) -> None:
    for name, wrong in client_faults(tmp_path).items():
        with pytest.raises(OffpathError) as fault:
            wrong()
        assert SECRET not in shown(fault.value), name


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan, math.inf, 1e30, None, SECRET])
def test_a_timeout_that_no_socket_can_wait_for_is_refused(tmp_path: Path, timeout_s: Any) -> None:
    with pytest.raises(OptionRefused, match="timeout_s is a number of seconds") as fault:
        connect(tmp_path, tenant="ada", token_file=file(tmp_path, b"x" * 16), timeout_s=timeout_s)
    assert SECRET not in shown(fault.value)


def test_a_name_that_no_certificate_has_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    tls = Authority(tmp_path).client("ada")
    with socket.create_server(("127.0.0.1", 0)) as daemon:
        for name in ("", ".offpathd"):
            with pytest.raises(OptionRefused, match="server_name"):
                connect(f"tls:127.0.0.1:{daemon.getsockname()[1]}", tls=replace(tls, server_name=name), timeout_s=5)


async def test_the_asyncio_client_says_no_more(tmp_path: Path) -> None:
    with pytest.raises(OptionRefused) as fault:
        await AsyncRequester.open(tmp_path, tenant=SECRET, token_file=file(tmp_path, SECRET.encode()), slots=0)
    assert SECRET not in shown(fault.value)


def test_no_message_shows_its_secret_when_printed_or_refused() -> None:
    hello = negotiating.Hello(tenant="ada", token=SECRET, slots=1, payload_bytes=1, result_bytes=1)
    assert SECRET not in repr(hello)
    for body in (b'{"kind":"hello","token":"%s"}', b'{"kind":"redeem","ticket":"%s"}'):
        with pytest.raises(ControlError) as fault:
            control.decode(negotiating.TO_DAEMON, body % SECRET.encode())
        assert SECRET not in shown(fault.value), body


def test_options_take_what_counts_as_a_whole_number() -> None:
    assert Options(priority=np.uint8(9)).priority == 9  # type: ignore[arg-type]
