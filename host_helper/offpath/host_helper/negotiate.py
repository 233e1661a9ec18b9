"""The requester's side of the negotiation, blocking: once per session, over Unix sockets or TLS.

Addresses: none (the local daemon), a daemon's runtime directory, ``unix:/path/negotiate.sock`` (tenant by token), or
``tls:host:port`` (tenant by client certificate). Nothing is sent before the daemon is authenticated: on the Unix
socket by its user (`offpath.bindings.trust`), with TLS by its certificate.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from offpath.bindings.errors import FrameError, NegotiationRefused, OptionRefused, PeerGone
from offpath.bindings.plausible import port_fault
from offpath.bindings.runtime import NEGOTIATE_SOCKET, local_socket
from offpath.bindings.trust import connect_daemon
from offpath.bindings.wire import control, negotiating
from offpath.bindings.wire.frames import FrameReader, frame

_MOST_TIMEOUT_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class Tls:
    """Files for TLS: the CA that signed the daemon's certificate, and the client's certificate and key.

    ``server_name`` is checked against the daemon's certificate.
    """

    ca_file: str
    cert_file: str
    key_file: str
    server_name: str = "offpathd"


@dataclass(frozen=True, slots=True)
class Rdma:
    """The requester's port for a daemon whose fabric is `verbs`: of this RDMA device, of this network interface,
    nearest to this PCI address. Empty fields match any port; an ambiguous choice is refused.
    """

    device: str = ""
    netdev: str = ""
    near: str = ""

    @classmethod
    def from_environment(cls) -> Rdma:
        """OFFPATH_REQUESTER_RDMA_DEVICE, OFFPATH_REQUESTER_RDMA_NETDEV, OFFPATH_REQUESTER_RDMA_NEAR."""
        return cls(*(os.environ.get(f"OFFPATH_REQUESTER_RDMA_{name}", "") for name in ("DEVICE", "NETDEV", "NEAR")))


class Negotiation:
    """An open control connection after its Welcome; it lives as long as the session does."""

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        self._sock = sock
        self._reader = FrameReader()
        self._frames: list[bytes] = []
        self._timeout_s = timeout_s
        self.kernels: dict[str, negotiating.KernelInfo] = {}
        self.lists = 0
        """How often the daemon has sent the list of its kernels since its welcome."""
        self.closing: control.Closing | None = None
        self._turn = threading.Lock()
        """A caller that is cancelled leaves its thread behind: one at a time reads."""
        self.is_durable = False
        """The daemon reported that the session outlives its process."""

    def hello(self, hello: negotiating.Hello) -> negotiating.Welcome:
        """Request a session. Raises: NegotiationRefused, PeerGone, ControlError."""
        try:
            self._sock.sendall(frame(control.encode(hello)))
        except OSError as fault:
            raise PeerGone(f"negotiation: {fault}") from None
        answer = control.decode(negotiating.TO_REQUESTER, self._next(time.monotonic() + self._timeout_s))
        if isinstance(answer, negotiating.Refused):
            raise NegotiationRefused(answer.code, answer.detail, answer.retry_after_ms)
        if isinstance(answer, control.Closing):
            raise PeerGone(f"{answer.code}: {answer.detail}")
        if not isinstance(answer, negotiating.Welcome):
            raise PeerGone("the daemon answered a hello with another message")
        self.kernels = {k.name: k for k in answer.kernels}
        return answer

    def redeem(self, ticket: str, end: negotiating.QueuePairEnd) -> negotiating.QueuePairEnd:
        """Send the requester's end of the session for ``ticket``; returns the daemon's end.

        Raises: NegotiationRefused, PeerGone, ControlError.
        """
        try:
            self._sock.settimeout(self._timeout_s)
            self._sock.sendall(frame(control.encode(negotiating.Redeem(ticket=ticket, end=end))))
            deadline = time.monotonic() + self._timeout_s
            while True:
                answer = control.decode(negotiating.TO_REQUESTER, self._next(deadline))
                if isinstance(answer, negotiating.Redeemed):
                    return answer.end
                if isinstance(answer, negotiating.Refused):
                    raise NegotiationRefused(answer.code, answer.detail, answer.retry_after_ms)
                if isinstance(answer, control.Closing):
                    raise PeerGone(f"{answer.code}: {answer.detail}")
                self._note(answer)
        except OSError as fault:
            self.update()  # the daemon may have sent a reason
            reason = f"{self.closing.code}: {self.closing.detail}" if self.closing is not None else str(fault)
            raise PeerGone(f"negotiation: {reason}") from None

    def describe(self, kernel: str) -> negotiating.Described:
        """Ask the daemon what the kernel takes and returns, and how its requests share launches.

        Raises: PeerGone: it is gone, has closed, or did not answer in time. ControlError: an invalid answer.
        """
        with self._turn:
            return self._describe(kernel)

    def _describe(self, kernel: str) -> negotiating.Described:
        try:
            self._sock.settimeout(self._timeout_s)
            self._sock.sendall(frame(control.encode(negotiating.Describe(name=kernel))))
        except OSError as fault:
            raise PeerGone(f"negotiation: {fault}") from None
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                answer = control.decode(negotiating.TO_REQUESTER, self._next(deadline))
            except TimeoutError as late:
                raise PeerGone(f"negotiation: {late}") from None
            if isinstance(answer, negotiating.Described) and answer.name == kernel:
                return answer
            if isinstance(answer, control.Closing | negotiating.Refused):
                raise PeerGone(f"{answer.code}: {answer.detail}")
            self._note(answer)

    def is_emulated(self, kernel: str) -> bool | None:
        """Whether a GPU that serves the kernel is emulated, by the daemon's last list. None: the daemon does not list
        the kernel, or no helper has offered it since the daemon's process started."""
        info = self.kernels.get(kernel)
        return None if info is None else info.is_emulated

    def fileno(self) -> int:
        """The connection's descriptor; -1 once closed."""
        return self._sock.fileno()

    def update(self, wait_s: float = 0.0) -> None:
        """Read pending messages: a new kernel list, or the reason for closing. Waits at most ``wait_s``."""
        with self._turn:
            self._update(time.monotonic() + wait_s)

    def _update(self, deadline: float) -> None:
        try:
            while True:
                message = control.decode(negotiating.TO_REQUESTER, self._next(deadline))
                if isinstance(message, negotiating.Kernels):
                    deadline = 0.0  # a newer list may have arrived already
                self._note(message)
                if isinstance(message, control.Closing):
                    self.closing = message
                    return
        except TimeoutError:
            return
        except PeerGone:
            return  # the doorbell reports the same loss, in the place where it is handled

    def _note(self, message: BaseModel) -> None:
        if isinstance(message, negotiating.Kernels):
            self.kernels = {k.name: k for k in message.kernels}
            self.lists += 1
        if isinstance(message, negotiating.Durable):
            self.is_durable = True

    def _next(self, deadline: float) -> bytes:
        while not self._frames:
            left = deadline - time.monotonic()
            try:
                self._sock.settimeout(max(left, 0.0))
                data = self._sock.recv(65536)
            except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
                raise TimeoutError("no message from the daemon in time") from None
            except OSError as fault:
                raise PeerGone(f"negotiation: {fault}") from None
            if not data:
                raise PeerGone("the daemon closed the negotiation")
            try:
                self._frames += self._reader.feed(data)
            except FrameError as fault:
                raise PeerGone(f"negotiation: {fault}") from None
        return self._frames.pop(0)

    def abandon(self) -> None:
        """Close without a goodbye: the session is to be resumed. Idempotent."""
        self._sock.close()

    def close(self) -> None:
        """Close with a goodbye: the daemon cancels what is unfinished. Idempotent."""
        if self._sock.fileno() < 0:
            return
        try:
            self._sock.settimeout(1.0)
            self._sock.sendall(frame(control.encode(control.Goodbye())))
        except OSError:
            pass  # the daemon is gone already
        self._sock.close()


def check_timeout(timeout_s: float) -> None:
    """Raises: OptionRefused: not a number of seconds, or out of a socket's range."""
    if not isinstance(timeout_s, (int, float)) or not 0 < timeout_s <= _MOST_TIMEOUT_S:
        raise OptionRefused(f"timeout_s is a number of seconds above 0 and at most {_MOST_TIMEOUT_S}")


def resolved(address: str | os.PathLike[str] | None) -> str:
    """``address`` with its scheme: ``unix:SOCKET_PATH`` or ``tls:HOST:PORT``; see the module.

    Raises: OptionRefused: neither a path nor an address.
    """
    if address is None or address == "":
        return f"unix:{local_socket(NEGOTIATE_SOCKET)}"
    text = os.fspath(address)
    if not isinstance(text, str) or "\0" in text:
        raise OptionRefused("an address is text without NUL")
    if text.startswith("tls:"):
        return text
    is_path = isinstance(address, os.PathLike) or text.startswith(("/", "./", "../")) or os.path.isdir(text)
    if not is_path and not text.startswith("unix:"):
        raise OptionRefused(
            "an address is a runtime directory, unix:/path or tls:host:port; without one, the local daemon"
        )
    path = text if is_path else text.removeprefix("unix:")
    return f"unix:{os.path.join(path, NEGOTIATE_SOCKET) if os.path.isdir(path) else path}"


def connect_to(address: str, tls: Tls | None, timeout_s: float) -> socket.socket:
    """A connection to the daemon at a `resolved` address. Raises: PeerGone, OptionRefused, DaemonNotTrusted."""
    scheme, _, rest = address.partition(":")
    try:
        if scheme == "unix":
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                connect_daemon(sock, rest, timeout_s)
                sock.settimeout(timeout_s)
            except BaseException:
                sock.close()
                raise
            return sock
        if tls is None:
            raise OptionRefused("an address tls:host:port needs tls=Tls(...)")
        host, _, port = rest.rpartition(":")
        if not host or not (port.isascii() and port.isdigit()):
            raise OptionRefused("an address for TLS is tls:host:port")
        if fault := port_fault(rest):
            raise OptionRefused(f"an address for TLS is tls:host:port; {fault}")
        if not isinstance(tls.server_name, str) or not tls.server_name or tls.server_name.startswith("."):
            raise OptionRefused("server_name is the name in the daemon's certificate; it is not empty")
        context = _client_context(tls)
        plain = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        try:
            return context.wrap_socket(plain, server_hostname=tls.server_name)
        except BaseException:
            plain.close()
            raise
    except (OptionRefused, PeerGone):
        raise
    except (OSError, UnicodeError) as fault:  # UnicodeError: an invalid host name
        raise PeerGone(f"no daemon at {address}: {fault}") from fault


def _client_context(tls: Tls) -> ssl.SSLContext:
    """Raises: OptionRefused: a file cannot be used; the text does not show its content."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(tls.ca_file)
    except (OSError, ValueError, TypeError) as fault:
        raise OptionRefused(f"{tls.ca_file}: {_why(fault)}") from None
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_password)
    except (OSError, ValueError, TypeError) as fault:
        raise OptionRefused(f"{tls.cert_file}, {tls.key_file}: {_why(fault)}") from None
    return context


def _no_password() -> str:
    """Prevents OpenSSL from prompting on the terminal for an encrypted key's password, and blocking."""
    raise ValueError("the key is encrypted; give one without a password")


def _why(fault: Exception) -> str:
    if isinstance(fault, ssl.SSLError):
        return f"not usable PEM ({fault.reason or 'no reason given'})"
    return fault.strerror or "cannot be read" if isinstance(fault, OSError) else str(fault)
