"""Every error that the boundary raises on purpose, grouped by who must act.

OffpathError
├── ProtocolError            the peer sent invalid bytes; the peer must change
│   ├── FrameError           control framing (length, size limit, truncation)
│   ├── ControlError         a control message that fits no model
│   ├── HeaderError          a request or answer header
│   ├── HostMessageError     a host-channel message
│   ├── DoorbellError        an immediate that names no slot of the session
│   ├── InaFrameError        a frame of the INA fabric
│   └── PacketError          a packet of statistical INA
├── RequestRefused           a valid request was refused; the requester must change it
│   ├── NegotiationRefused   the daemon's typed refusal, with ``retry_after_ms``
│   ├── TicketRefused        a ticket that is unknown, used or expired
│   └── PlacementTaken       an illegal start, or slices in use
├── PeerGone                 the other process ended or closed; open a new session
│   └── KeyNotListed         the daemon does not list this process's key; its operator must act
├── DaemonNotTrusted         the daemon's socket belongs to an unexpected user; nothing was sent to it
├── OptionRefused            an argument, variable or file of the caller is unusable; also a ValueError
│   └── TokenRefused         a token file is unreadable, accessible to others, or holds no token
├── HostChannelError         the host channel's carrier is misconfigured; an operator must act
│   ├── ZmqMissing           pyzmq cannot be imported
│   ├── KeyFileRefused       a key file is unreadable, accessible to others, or holds no key
│   ├── NobodyAllowed        no client key is listed: a listener without a list would accept everybody
│   └── ComchUnusable        DOCA, a capable device or its representor is missing, or the server name is taken
├── RegionError              invalid memory (unsealed, too small, out of bounds)
├── HandoverError            descriptors or variables from a service manager are invalid; its unit must change
├── PlaceUnusable            a socket, port or file cannot be made: taken, full or forbidden; an operator must act
├── FabricAddressError       not a switch's address
├── DeviceError              the GPU or copy engine failed; an operator must act
│   ├── DeviceGone           the device was removed or failed; every handle on it is invalid
│   │   ├── CudaLost         a CUDA error after which the process cannot use its GPU any more
│   │   ├── DriverMissing    no NVIDIA kernel driver is loaded
│   │   └── DriverMismatch   the kernel driver and its libraries are of different releases
│   ├── CudaError            a call of the CUDA driver failed, with CUDA's name of the result
│   │   └── CudaMissing      cuda-bindings, the driver's library or a function of it is missing
│   ├── NoGpu                a helper has no GPU to serve, and none to emulate
│   ├── NvmlError            an NVML call failed, with its code
│   │   ├── NvmlMissing      nvidia-ml-py or libnvidia-ml.so.1 cannot be loaded
│   │   ├── NvmlDenied       this process lacks the permission or the device node
│   │   └── InstanceInUse    a process, an export or an agent holds the instance
│   ├── MigModeUnusable      MIG is off, on or pending where the configuration needs another mode
│   ├── VerbsError           a verbs call failed, with its errno
│   │   ├── VerbsMissing     pyverbs cannot be imported
│   │   ├── NoRdmaDevice     no RDMA device matches
│   │   ├── PortDown         the port exists and is not active
│   │   ├── GidMissing       the port has no address to connect by
│   │   └── WorkFailed       a work request ended in an error; its queue pair is unusable
│   └── DocaError            a DOCA call failed, with DOCA's name of the error
│       ├── DocaMissing      the DOCA libraries cannot be loaded
│       ├── DocaTooOld       the installed DOCA lacks a function
│       └── NoDocaDevice     no DOCA device matches
├── JobEngineError           an engine of jobs (Slurm, Ray, local) failed
│   ├── EngineRefused        the engine does not take the job, with its reason; the request must change
│   │   └── EngineJobUnknown no job of this identity
│   ├── EngineUnavailable    the engine does not answer; repeat the call
│   ├── EngineAnswerInvalid  the engine's answer cannot be read: another version, or damaged
│   └── EngineMissing        the engine's programs or package are not installed
└── ResourceClosed           a handle was used after close: a bug in offpath
"""

from __future__ import annotations

from typing import Any


class OffpathError(Exception):
    """Root of every error that is raised on purpose. Each survives pickle and copy, whatever its constructor takes: a
    pool's worker hands it to its parent."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[OffpathError], args: tuple[Any, ...], attributes: dict[str, Any]) -> OffpathError:
    made = kind.__new__(kind, *args)
    made.__dict__.update(attributes)
    return made


class ProtocolError(OffpathError):
    """The peer sent invalid bytes. ``code`` is stable; metrics count it."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code
        self.detail = detail


class FrameError(ProtocolError):
    """A control frame is too large, empty or truncated."""


class ControlError(ProtocolError):
    """A control message is not JSON, is of an unknown kind, or does not fit its model."""


class HeaderError(ProtocolError):
    """A request or answer header breaks a rule of docs/protocol.md."""


class HostMessageError(ProtocolError):
    """A host-channel message breaks a rule of docs/protocol.md."""


class DoorbellError(ProtocolError):
    """An immediate names no slot of the session, or is malformed."""


class InaFrameError(ProtocolError):
    """A frame between ranks and switches breaks a rule of docs/protocol.md."""


class PacketError(ProtocolError):
    """A packet of statistical INA breaks a rule of docs/protocol/statistical-ina.md."""


class RequestRefused(OffpathError):
    """A valid request was refused."""


class NegotiationRefused(RequestRefused):
    """The daemon refused the session. ``retry_after_ms`` 0: a retry will not help."""

    def __init__(self, code: str, detail: str, retry_after_ms: int = 0) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.retry_after_ms = retry_after_ms


class TicketRefused(RequestRefused):
    """The ticket is unknown, was redeemed before, or came after its five seconds."""


class PlacementTaken(RequestRefused):
    """The start is illegal for the profile, or slices are in use. Request another placement from the scheduler."""


class PeerGone(OffpathError):
    """The other process ended or closed its side."""


class KeyNotListed(PeerGone):
    """The daemon answers and refuses this process's key: the key is not listed, or the domain differs."""


class DaemonNotTrusted(OffpathError):
    """The daemon's directory, socket or process belongs to a user that is not trusted as a daemon."""


class OptionRefused(OffpathError, ValueError):
    """An argument, environment variable or file that the caller named is unusable. The text contains no secret."""


class TokenRefused(OptionRefused):
    """A token file is unreadable, accessible to others, or holds no token. The text never contains the file's
    content."""


class HostChannelError(OffpathError):
    """The carrier of the host channel is misconfigured."""


class ZmqMissing(HostChannelError):
    """pyzmq is not installed for this Python."""


class KeyFileRefused(HostChannelError):
    """A file of CURVE keys is unreadable, may be read or written by others, or holds no key."""


class NobodyAllowed(HostChannelError):
    """The list of allowed client keys is empty."""


class ComchUnusable(HostChannelError):
    """Comch is unusable here: DOCA, a capable device or the representor is missing, or the name is taken."""


class RegionError(OffpathError):
    """Received memory is unsealed or too small, or the range lies outside it."""


class HandoverError(OffpathError):
    """Descriptors or variables from a service manager are invalid."""


class PlaceUnusable(OffpathError):
    """A socket, port or file cannot be created or bound: another process has it, or this one lacks permission."""


class FabricAddressError(OffpathError):
    """Not ``unix://PATH`` or ``tcp://HOST:PORT``."""


class DeviceError(OffpathError):
    """The GPU or the copy engine failed."""


class DeviceGone(DeviceError):
    """The device was removed or failed; every handle on it is invalid."""


class CudaLost(DeviceGone):
    """A result of the CUDA driver after which every call of this process fails. ``code``: its CUresult."""

    def __init__(self, call: str, name: str, code: int) -> None:
        super().__init__(f"{call}: {name}: this process cannot use its GPU any more")
        self.call = call
        self.name = name
        self.code = code


class CudaError(DeviceError):
    """A call of the CUDA driver failed. ``name``: CUDA's name of the result. ``code``: its CUresult, -1 if none."""

    def __init__(self, call: str, name: str, code: int = -1) -> None:
        super().__init__(f"{call}: {name}")
        self.call = call
        self.name = name
        self.code = code


class CudaMissing(CudaError):
    """cuda-bindings is not installed, the driver's library cannot be loaded, or it lacks a function."""


class NoGpu(DeviceError):
    """A helper finds no GPU that it can use, and has no model to emulate."""


class MpsError(DeviceError):
    """A lease's MPS control daemon did not start, or did not accept a setting."""


class MpsMissing(MpsError):
    """MPS is required, and this machine has no nvidia-cuda-mps-control."""


class MpsNotInForce(MpsError):
    """A worker runs without MPS, or with another share of the GPU than its own. CUDA itself does not report that."""


class DriverMissing(DeviceGone):
    """No NVIDIA kernel driver is loaded (NVML code 9)."""


class DriverMismatch(DeviceGone):
    """The kernel driver and its libraries are of different releases (NVML code 18): a package was upgraded and the
    kernel module was not reloaded."""


class NvmlError(DeviceError):
    """An NVML call failed. ``code``: its nvmlReturn_t, -1 if none. ``check``: where to look."""

    def __init__(self, call: str, detail: str = "", code: int = -1, check: str = "") -> None:
        number = f" (NVML code {code})" if code >= 0 else ""
        super().__init__(f"{call}: {detail}{number}" + (f": {check}" if check else ""))
        self.call = call
        self.code = code
        self.check = check


class NvmlMissing(NvmlError):
    """nvidia-ml-py is not installed for this Python, or libnvidia-ml.so.1 cannot be loaded."""


class NvmlDenied(NvmlError):
    """This process may not make the call (code 4), or the kernel denies it a device node (code 17)."""


class InstanceInUse(NvmlError):
    """The instance cannot be destroyed yet. ``pids``: processes that NVML names; it does not name all holders."""

    def __init__(
        self, call: str, detail: str = "", code: int = -1, check: str = "", pids: tuple[int, ...] = ()
    ) -> None:
        super().__init__(call, detail, code, check)
        self.pids = pids


class MigModeUnusable(DeviceError):
    """The GPU's MIG mode is not the one that its configuration needs, or a change of it is pending. offpath never
    changes it."""


class VerbsError(DeviceError):
    """A verbs call failed. ``code``: its errno, -1 where the library gave none. ``check``: where to look."""

    def __init__(self, call: str, detail: str = "", code: int = -1, check: str = "") -> None:
        super().__init__(": ".join(part for part in (call, detail) if part) + (f" ({check})" if check else ""))
        self.code = code
        self.check = check


class VerbsMissing(VerbsError):
    """pyverbs is not installed for this Python, or does not match the installed libibverbs."""


class NoRdmaDevice(VerbsError):
    """The kernel lists no RDMA device, none of the given name or address, or several that match equally."""


class PortDown(VerbsError):
    """The port is not ACTIVE: its interface is down, or its cable or peer is missing."""


class GidMissing(VerbsError):
    """The port has no RoCEv2 GID over IPv4: its interface has no IPv4 address, or supports RoCEv1 only."""


class WorkFailed(VerbsError):
    """A work request completed with an error. ``status``: libibverbs' name of it without IBV_WC_."""

    def __init__(self, status: str, check: str) -> None:
        super().__init__(f"work request: {status}", check=check)
        self.status = status


class DocaError(DeviceError):
    """A DOCA call failed. ``code``: its doca_error_t, -1 if none. ``name``: DOCA's name of it.

    ``check``: where to look.
    """

    def __init__(self, call: str, detail: str = "", code: int = -1, name: str = "", check: str = "") -> None:
        text = ": ".join(part for part in (call, name, detail) if part)
        super().__init__(text + (f" ({check})" if check else ""))
        self.call = call
        self.code = code
        self.name = name
        self.check = check


class DocaMissing(DocaError):
    """A DOCA library is not installed, not at the configured path, or cannot be loaded."""


class DocaTooOld(DocaError):
    """The installed DOCA lacks a function or a whole library."""


class NoDocaDevice(DocaError):
    """DOCA lists no device, none of the given name with the required capabilities, or several that match equally."""


class JobEngineError(OffpathError):
    """An engine of jobs failed. Its subclasses tell who must act."""

    may_have_begun = True
    """Of a start: False: the engine cannot have begun the command by it."""


class EngineRefused(JobEngineError):
    """The engine does not take the job. ``reason``: its own text, one line, bounded."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EngineJobUnknown(EngineRefused):
    """The engine has no job of this identity: it was never started, or is forgotten."""


class EngineUnavailable(JobEngineError):
    """The engine did not answer in time, or another controller uses it. Every call may be repeated."""


class EngineAnswerInvalid(JobEngineError):
    """The engine's answer is too long or not of the known form."""


class EngineMissing(JobEngineError):
    """A program or package of the engine is not installed where the configuration says."""


class ResourceClosed(OffpathError):
    """A handle was used after it was closed."""
