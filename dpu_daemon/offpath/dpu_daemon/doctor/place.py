"""Checks limits, the runtime directory and the running daemon against a configuration."""

from __future__ import annotations

import errno
import os
import pwd
import resource
import socket
import stat
from collections.abc import Iterator
from typing import Final

from offpath.bindings.errors import OffpathError
from offpath.bindings.wire import control, negotiating
from offpath.bindings.wire.frames import FrameReader, frame
from offpath.dpu_daemon.config import DaemonConfig, TlsTable
from offpath.dpu_daemon.doctor.findings import Finding, Severity, ok
from offpath.dpu_daemon.durability.inherited import LISTENING

MIB: Final = 1 << 20
_HELPER: Final = "offpath-helper"
_ANSWER_TIMEOUT_S: Final = 2.0
_ANY_ADDRESS: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
_FDS_PER_SESSION: Final = 6  # slots and answers, each mapped by a duplicate; doorbell; negotiation
_FDS_PER_LANE: Final = 4  # channel, pidfd, memory and the duplicate that maps it
_MOST_LANES: Final = 512
_FDS_AT_REST: Final = 64 + 2 * 256 + 63 + 16 + 8  # includes unidentified peers of every listener


def memlock_bytes(config: DaemonConfig) -> int:
    """Most memory that the daemon may pin on an RDMA device: every tenant's ``max_bytes`` plus a tenth for its rings.

    A page that is pinned twice counts twice against RLIMIT_MEMLOCK, so no sharing is assumed.
    """
    return sum(table.max_bytes for table in config.tenant) * 11 // 10


def open_files(config: DaemonConfig) -> int:
    """Descriptors at full load: all sessions of all tenants, and all lanes of the largest machine."""
    return sum(t.max_sessions for t in config.tenant) * _FDS_PER_SESSION + _MOST_LANES * _FDS_PER_LANE + _FDS_AT_REST


def check_limits(config: DaemonConfig) -> Iterator[Finding]:
    """Checks this process's limits, which a daemon started from here would inherit, against the configuration."""
    pinned, (memlock, _) = memlock_bytes(config), resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if memlock != resource.RLIM_INFINITY and memlock < pinned:
        yield Finding(
            "memlock", Severity.WARNING,
            f"RLIMIT_MEMLOCK is {memlock >> 10} KiB, the tenants' buffers may reach {pinned >> 10} KiB",
            f"LimitMEMLOCK={pinned} in the unit (loopback ports pin nothing and work without it)",
        )  # fmt: skip
    else:
        yield ok("memlock", f"room for {pinned >> 10} KiB of pinned buffers")
    files, (nofile, _) = open_files(config), resource.getrlimit(resource.RLIMIT_NOFILE)
    if nofile < files:
        yield Finding(
            "nofile", Severity.WARNING, f"RLIMIT_NOFILE is {nofile}, full load takes up to {files} descriptors",
            f"LimitNOFILE={files} in the unit, or fewer max_sessions",
        )  # fmt: skip
    else:
        yield ok("nofile", f"{nofile} descriptors, {files} at full load")


def check_helper_user(config: DaemonConfig) -> Iterator[Finding]:
    """Nothing where no package has made the user."""
    try:
        uid = pwd.getpwnam(_HELPER).pw_uid
    except KeyError:
        return
    if uid in config.allowed_host_uids():
        yield ok("helper-user", f"{_HELPER} (uid {uid}) may connect as helper")
    else:
        yield Finding(
            "helper-user", Severity.WARNING, f"{_HELPER} (uid {uid}) may not connect as helper",
            f"host_uids = [{uid}] in the configuration, if offpath-helper.service runs here",
        )  # fmt: skip


def check_directory(directory: str, config: DaemonConfig | None) -> Iterator[Finding]:
    """Checks the runtime directory, its contents, and a daemon that may be serving there."""
    try:
        found = os.lstat(directory)
    except FileNotFoundError:
        yield Finding("runtime-directory", Severity.NOTE, f"{directory} does not exist yet", "the daemon creates it")
        return
    except OSError as fault:
        yield Finding("runtime-directory", Severity.ERROR, f"{directory}: {fault.strerror}", "choose another one")
        return
    if not stat.S_ISDIR(found.st_mode):
        yield Finding("runtime-directory", Severity.ERROR, f"{directory} is not a directory", "remove it")
        return
    if found.st_uid != os.geteuid():
        yield Finding(
            "runtime-directory", Severity.ERROR, f"{directory} belongs to uid {found.st_uid}, you are {os.geteuid()}",
            "run doctor as the daemon's user, or choose another directory (--runtime-dir)",
        )  # fmt: skip
    elif found.st_mode & 0o022:
        mode = stat.S_IMODE(found.st_mode)
        yield Finding(
            "runtime-directory", Severity.ERROR, f"{directory}: others may write (mode {mode:o})", "chmod 755"
        )
    else:
        yield ok("runtime-directory", f"{directory}, mode {stat.S_IMODE(found.st_mode):o}")
    if config is not None and config.durability.journal_mib:
        space = os.statvfs(directory)
        free, wanted = space.f_bavail * space.f_frsize, 2 * config.durability.journal_mib * MIB
        if free < wanted:
            yield Finding(
                "journal-space", Severity.ERROR, f"{free // MIB} MiB free in {directory}, {wanted // MIB} wanted",
                "free some, or a smaller durability.journal_mib",
            )  # fmt: skip
        else:
            yield ok("journal-space", f"{free // MIB} MiB free, {wanted // MIB} wanted")
    yield from _sockets(directory, config.tls if config is not None else None)


def _sockets(directory: str, tls: TlsTable | None) -> Iterator[Finding]:
    listens: dict[str, bool] = {}
    for name, (file, kind) in LISTENING.items():
        path = os.path.join(directory, file)
        if not os.path.exists(path):
            continue
        with socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK) as probe:
            listens[name] = (error := probe.connect_ex(path)) != errno.ECONNREFUSED
        if not listens[name]:
            yield Finding("stale-socket", Severity.NOTE, f"no process listens at {path}", "the next daemon replaces it")
        elif error not in (0, errno.EAGAIN):
            yield Finding(
                "stale-socket", Severity.WARNING, f"{path}: {os.strerror(error)}", "look at its owner and mode"
            )
    if not listens.get("negotiate"):
        yield Finding("daemon", Severity.NOTE, f"no daemon serves in {directory}", "offpath daemon run")
        return
    fault = unanswered(os.path.join(directory, LISTENING["negotiate"][0]))
    if fault:
        yield Finding(
            "daemon", Severity.ERROR, f"a daemon listens in {directory} and does not answer: {fault}",
            "SIGABRT makes it dump where it hangs; a service manager or `daemon run --keep` sends it automatically",
        )  # fmt: skip
    else:
        yield ok("daemon", f"a daemon answers in {directory}")
    if tls is not None and not tls.listen.endswith(":0"):
        yield _tcp(tls.listen)


def _tcp(listen: str) -> Finding:
    """Whether a process listens at the TCP address. TLS is not tested: that needs a client certificate."""
    host, _, port = listen.rpartition(":")
    host = _ANY_ADDRESS.get(host.strip("[]"), host.strip("[]"))
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_TIMEOUT_S).close()
    except (OSError, OverflowError) as fault:
        return Finding("daemon", Severity.ERROR, f"no process listens at {listen}: {fault}", "see the daemon's log")
    return ok("daemon", f"a process listens at {listen}")


def unanswered(path: str) -> str:
    """Why the daemon at ``path`` does not answer a hello of an unknown tenant; empty: it does, with a refusal."""
    hello = negotiating.Hello(client="doctor", tenant="Self:Check", slots=1, payload_bytes=0, result_bytes=0)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(_ANSWER_TIMEOUT_S)
            sock.connect(path)
            sock.sendall(frame(control.encode(hello)))
            bodies = FrameReader().feed(sock.recv(65536))
        if not bodies:
            return "it closed the connection"
        answer = control.decode(negotiating.TO_REQUESTER, bodies[0])
    except TimeoutError:
        return f"no answer for {_ANSWER_TIMEOUT_S:g} s"
    except (OSError, OffpathError) as fault:
        return str(fault)
    return "" if isinstance(answer, negotiating.Refused) else f"unexpected answer {answer.kind}"
