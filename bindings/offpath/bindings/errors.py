"""Every error the boundary raises on purpose, split by who must act.

OffpathError
├── ProtocolError            the peer sent bytes we refuse; the peer must change
│   ├── FrameError           control framing (length, size limit, truncation)
│   ├── ControlError         a control message that fits no model
│   ├── HeaderError          a request or answer header
│   ├── HostMessageError     a host-channel message
│   ├── DoorbellError        an immediate that names no slot of the session
│   └── InaFrameError        a frame of the INA fabric
├── RequestRefused           a well-formed wish that we will not grant; the asker must change it
│   ├── NegotiationRefused   the daemon's typed refusal, with ``retry_after_ms``
│   ├── TicketRefused        a ticket that is unknown, used or late
│   └── PlacementTaken       an illegal start, or slices in use
├── PeerGone                 the other process ended or closed; open a new session
│   └── KeyNotListed         the daemon lists no such key of ours; its operator should look
├── DaemonNotTrusted         the daemon's socket belongs to an unexpected user; nothing was sent to it
├── OptionRefused            an argument, variable or file of the caller's that cannot be used; also a ValueError
│   └── TokenRefused         a token file is unreadable, open to others, or holds no token
├── HostChannelError         the host channel's carrier cannot be used as it is set up; an operator should look
│   ├── ZmqMissing           pyzmq cannot be imported
│   ├── KeyFileRefused       a key file is unreadable, open to others, or holds no key
│   ├── NobodyAllowed        no client's key is listed: a listener without a list would let everybody in
│   └── ComchUnusable        DOCA, a device that can, or its representor is missing, or the server's name is taken
├── RegionError              memory that is not what it must be (unsealed, too small, out of bounds)
├── HandoverError            what a service manager handed down makes no sense; its unit must change
├── PlaceUnusable            a socket, port or file cannot be made: taken, full or forbidden; an operator should look
├── FabricAddressError       an address of a switch that is none
├── DeviceError              the GPU or copy engine failed; an operator should look
│   ├── DeviceGone           the device left; every handle on it is dead
│   ├── VerbsError           a call of the verbs library failed, with its errno
│   │   ├── VerbsMissing     pyverbs cannot be imported
│   │   ├── NoRdmaDevice     no RDMA device fits what was asked for
│   │   ├── PortDown         the port is there and carries nothing
│   │   ├── GidMissing       the port has no address that we can connect by
│   │   └── WorkFailed       a work request ended in an error; its queue pair takes no more
│   └── DocaError            a call of DOCA failed, with DOCA's name of the error
│       ├── DocaMissing      DOCA's libraries cannot be loaded
│       ├── DocaTooOld       the DOCA that is installed lacks a function
│       └── NoDocaDevice     no DOCA device fits what was asked for
└── ResourceClosed           a handle of ours used after close: our bug
"""

from __future__ import annotations


class OffpathError(Exception):
    """Root of everything raised on purpose."""


class ProtocolError(OffpathError):
    """The peer sent bytes we refuse. ``code`` is stable and is what metrics count."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code
        self.detail = detail


class FrameError(ProtocolError):
    """A control frame is too large, empty or cut short."""


class ControlError(ProtocolError):
    """A control message is not JSON, of an unknown kind, or breaks its model."""


class HeaderError(ProtocolError):
    """A request or answer header breaks a rule of docs/protocol.md."""


class HostMessageError(ProtocolError):
    """A host-channel message breaks a rule of docs/protocol.md."""


class DoorbellError(ProtocolError):
    """An immediate names no slot of the session, or is no immediate at all."""


class InaFrameError(ProtocolError):
    """A frame between ranks and switches breaks a rule of docs/protocol.md."""


class RequestRefused(OffpathError):
    """A well-formed wish that we will not grant."""


class NegotiationRefused(RequestRefused):
    """The daemon refused the session; ``retry_after_ms`` 0 means that trying again will not help."""

    def __init__(self, code: str, detail: str, retry_after_ms: int = 0) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.retry_after_ms = retry_after_ms


class TicketRefused(RequestRefused):
    """The ticket is unknown, was redeemed before, or came after its five seconds."""


class PlacementTaken(RequestRefused):
    """Not a legal start for the profile, or slices in use; ask the scheduler again."""


class PeerGone(OffpathError):
    """The other process ended or closed its side."""


class KeyNotListed(PeerGone):
    """The daemon is there and refuses our key: it is not on its list, or the domain is not ours."""


class DaemonNotTrusted(OffpathError):
    """The daemon's directory, socket or process belongs to a user that is not trusted as a daemon."""


class OptionRefused(OffpathError, ValueError):
    """An argument, an environment variable or a file that the caller named cannot be used. Its text has no secret."""


class TokenRefused(OptionRefused):
    """A token file is unreadable, open to others, or holds no token. Its text never has what is in the file."""


class HostChannelError(OffpathError):
    """The carrier of the host channel cannot be used as it is set up."""


class ZmqMissing(HostChannelError):
    """pyzmq is not installed for this Python."""


class KeyFileRefused(HostChannelError):
    """A file of CURVE keys cannot be read, may be read or written by others, or holds no key."""


class NobodyAllowed(HostChannelError):
    """The list of allowed client keys is empty: to start would be to let nobody in, or everybody."""


class ComchUnusable(HostChannelError):
    """Comch cannot be used here: DOCA, a device that can, or the representor is missing, or the name is taken."""


class RegionError(OffpathError):
    """Memory handed to us is not sealed, too small, or the range lies outside it."""


class HandoverError(OffpathError):
    """What a service manager handed down (descriptors, variables) makes no sense."""


class PlaceUnusable(OffpathError):
    """A socket, port or file cannot be created or bound: another process has it, or this one may not make it."""


class FabricAddressError(OffpathError):
    """Not ``unix://PATH`` or ``tcp://HOST:PORT``."""


class DeviceError(OffpathError):
    """The GPU or the copy engine failed."""


class DeviceGone(DeviceError):
    """The device left; every handle on it is dead."""


class VerbsError(DeviceError):
    """A verbs call failed; ``code`` is its errno, -1 where the library gave none. ``check``: where to look."""

    def __init__(self, call: str, detail: str = "", code: int = -1, check: str = "") -> None:
        super().__init__(": ".join(part for part in (call, detail) if part) + (f" ({check})" if check else ""))
        self.code = code
        self.check = check


class VerbsMissing(VerbsError):
    """pyverbs is not installed for this Python, or does not fit the libibverbs that is."""


class NoRdmaDevice(VerbsError):
    """The kernel shows no RDMA device, none of the asked name or place, or several that fit alike."""


class PortDown(VerbsError):
    """The port is not ACTIVE: its interface is down, or its cable or peer is missing."""


class GidMissing(VerbsError):
    """The port has no GID of RoCEv2 over IPv4: its interface has no IPv4 address, or speaks RoCEv1 only."""


class WorkFailed(VerbsError):
    """A work request completed with an error; ``status`` is libibverbs' name of it without IBV_WC_."""

    def __init__(self, status: str, check: str) -> None:
        super().__init__(f"work request: {status}", check=check)
        self.status = status


class DocaError(DeviceError):
    """A DOCA call failed; ``code`` is its doca_error_t, -1 where there was none, and ``name`` DOCA's name of it.

    ``check``: where to look.
    """

    def __init__(self, call: str, detail: str = "", code: int = -1, name: str = "", check: str = "") -> None:
        said = ": ".join(part for part in (call, name, detail) if part)
        super().__init__(said + (f" ({check})" if check else ""))
        self.call = call
        self.code = code
        self.name = name
        self.check = check


class DocaMissing(DocaError):
    """A library of DOCA's is not installed, not where it was said to be, or cannot be loaded."""


class DocaTooOld(DocaError):
    """A function, or a whole library, is absent from the DOCA that is installed."""


class NoDocaDevice(DocaError):
    """DOCA shows no device, none of the asked name that can do what is needed, or several that fit alike."""


class ResourceClosed(OffpathError):
    """A handle was used after it was closed."""
