"""Clients of a gateway that hold or send all that they can. `python -m offpath.cli.bench.serving.hostile KIND HTTP_PORT
GRPC_ADDRESS TOKEN` prints a line when it has begun, and goes on until it is killed.

A client of gRPC needs a process of its own: its threads do not outlive a fork.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from offpath.cli.local.child import end_with_parent
from offpath.host_helper.gateway.messages import SERVICE

LONG_BYTES: Final = 4_100_000
"""Of a message: a little less than the least bound of the gateway."""
_CHANNELS: Final = 4
_CALLS: Final = 100
"""Of each channel."""
_CONNECTIONS: Final = 1500
_HEADS: Final = 1024
_RENEW_S: Final = 7.0
_BOUND_S: Final = 20.0
_MODEL: Final = b"\x0a\x08identity"
_Begun = Callable[[], None]


def _never() -> Iterator[bytes]:
    threading.Event().wait()
    yield b""


def _channel(address: str) -> Any:
    import grpc

    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
    return grpc.insecure_channel(address, options=options)


def _metadata(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),) if token else ()


def _half_open(address: str, path: str, token: str, begun: _Begun) -> None:
    """Calls whose message never comes, begun again when they end."""
    import grpc

    calls: list[Any] = []
    channels = [_channel(address) for _ in range(_CHANNELS)]
    methods = [channel.stream_stream(path) for channel in channels]

    def begin(method: Any) -> Any:
        return method(_never(), metadata=_metadata(token))

    calls = [(method, begin(method)) for method in methods for _ in range(_CALLS)]
    begun()
    while True:
        time.sleep(1.0)
        with contextlib.suppress(grpc.RpcError):
            calls = [(method, begin(method) if call.done() else call) for method, call in calls]


def _messages(address: str, token: str, body: bytes, begun: _Begun) -> None:
    """The same message, one after the other."""
    import grpc

    call = _channel(address).unary_unary(f"/{SERVICE}/ModelInfer")
    while True:
        with contextlib.suppress(grpc.RpcError):
            call(body, metadata=_metadata(token), timeout=_BOUND_S)
        begun()


def _field(number: int, value: bytes) -> bytes:
    """Of a protobuf message."""
    length, prefix = len(value), b""
    while length > 127:
        prefix, length = prefix + bytes([length & 127 | 128]), length >> 7
    return bytes([number << 3 | 2]) + prefix + bytes([length]) + value


def _parameters(number: int) -> bytes:
    one = [_field(number, _field(1, b"%x" % each) + b"\x12\x02\x08\x01") for each in range(LONG_BYTES // 13)]
    return b"".join(one)[:LONG_BYTES]


def inputs() -> bytes:
    """A message of two million inputs, each empty."""
    return _MODEL + b"\x2a\x00" * (LONG_BYTES // 2)


def tensor_parameters() -> bytes:
    """A message of one input with 300 000 parameters."""
    tensor = b"\x0a\x06INPUT0\x12\x05UINT8\x1a\x01\x01" + _parameters(4)
    return _MODEL + _field(5, tensor) + b"\x3a\x01\x00"


def json_parameters(token: str) -> bytes:
    """A request over HTTP with a parameter of more than a million lists."""
    body = b'{"parameters":{"x":[' + b",".join([b"[]"] * (LONG_BYTES // 3)) + b']},"inputs":[]}'
    head = f"POST /v2/models/identity/infer HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _http(port: int, request: bytes, begun: _Begun) -> None:
    """The same request, one after the other."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), _BOUND_S) as sock:
            while True:
                sock.sendall(request)
                if not sock.recv(1 << 16):
                    break
                begun()


def _heads(port: int, token: str, begun: _Begun) -> None:
    """Connections with one answered request, and one byte of the next."""
    ask = f"GET /v2 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    held: list[socket.socket] = []
    while True:
        renewed_s = time.monotonic()
        for sock in held[:]:
            with contextlib.suppress(OSError):
                sock.sendall(ask[1:])
                if sock.recv(1 << 16):
                    sock.sendall(ask[:1])
                    continue
            held.remove(sock)
            sock.close()
        while len(held) < _HEADS and time.monotonic() < renewed_s + _RENEW_S:
            with contextlib.suppress(OSError):
                held.append(sock := socket.create_connection(("127.0.0.1", port), _BOUND_S))
                sock.sendall(ask)
                sock.recv(1 << 16)
                sock.sendall(ask[:1])
        begun()
        time.sleep(max(renewed_s + _RENEW_S - time.monotonic(), 0.0))


def _connects(addresses: list[tuple[str, int]], begun: _Begun) -> None:
    """Connections that send nothing, opened again when they are closed."""
    held: list[tuple[tuple[str, int], socket.socket]] = []
    while True:
        for address in addresses:
            while sum(each == address for each, _ in held) < _CONNECTIONS:
                with contextlib.suppress(OSError):
                    held.append((address, socket.create_connection(address, _BOUND_S)))
        begun()
        time.sleep(1.0)
        for each in held[:]:
            if _is_closed(each[1]):
                held.remove(each)
                each[1].close()


def _is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        while sock.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


KINDS: Final[dict[str, Callable[[int, str, str, _Begun], None]]] = {
    "half-open calls": lambda http, grpc, token, begun: _half_open(grpc, "/grpc.health.v1.Health/Check", "", begun),
    "idle streams": lambda http, grpc, token, begun: _half_open(grpc, f"/{SERVICE}/ModelStreamInfer", token, begun),
    "empty inputs": lambda http, grpc, token, begun: _messages(grpc, token, inputs(), begun),
    "tensor parameters": lambda http, grpc, token, begun: _messages(grpc, token, tensor_parameters(), begun),
    "JSON parameters": lambda http, grpc, token, begun: _http(http, json_parameters(token), begun),
    "begun heads": lambda http, grpc, token, begun: _heads(http, token, begun),
    "silent connections": lambda http, grpc, token, begun: _connects(
        [("127.0.0.1", http), ("127.0.0.1", int(grpc.rpartition(":")[2]))], begun
    ),
}
"""What each does, from its ports, token, and what to call when it has begun (again)."""


def main(kind: str, http_port: str, grpc_address: str, token: str) -> None:
    """Until it is killed."""
    has_begun = False

    def begun() -> None:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            print("begun", flush=True)

    KINDS[kind](int(http_port), grpc_address, token, begun)


if __name__ == "__main__":
    end_with_parent()
    main(*sys.argv[1:])
