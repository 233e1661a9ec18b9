"""Checks a host for a helper or a requester: interpreter and kernel, packages, the daemon's sockets, devices."""

from __future__ import annotations

import importlib
import os
import platform
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from offpath.bindings import faults
from offpath.bindings.build import check_build
from offpath.bindings.doca.device import devices
from offpath.bindings.doca.load import load
from offpath.bindings.errors import DaemonNotTrusted, DeviceError, DocaMissing, OffpathError, OptionRefused
from offpath.bindings.findings import Finding, Severity, ok
from offpath.bindings.ports import Gpu
from offpath.bindings.runtime import HOST_SOCKET, ina_directory
from offpath.bindings.trust import connect_daemon
from offpath.bindings.verbs.devices import ports
from offpath.host_helper.doctor_gpu import check_driver, check_mig
from offpath.host_helper.gpus import NO_GPU_ADVICE, find_gpus
from offpath.host_helper.mps import PROGRAM, find_program

_PACKAGES: Final = (
    ("numpy", Severity.ERROR, "kernels and requesters exchange its arrays: pip install numpy"),
    ("zmq", Severity.NOTE, "the host channel zmq and `offpath keys` need it: pip install pyzmq"),
    ("torch", Severity.NOTE, "training jobs that share aggregation trees need it (docs/training.md)"),
)
_CONNECT_S: Final = 2.0
_PACKAGES_INA: Final = "/run/offpath-ina"  # of offpath-helper.service


def check_host(directory: str, doca_path: str = "") -> Iterator[Finding]:
    """``directory``: where a local daemon has its sockets; ``doca_path``: the folder of DOCA's libraries."""
    cpus = len(os.sched_getaffinity(0))
    if cpus < 2:
        yield Finding(
            "cpu", Severity.WARNING, "one processor, shared by helper, workers and requesters",
            "give this machine, or this process, a second one",
        )  # fmt: skip
    else:
        yield ok("cpu", f"{cpus} processors")
    yield _pidfds()
    for name, need, why in _PACKAGES:
        try:
            importlib.import_module(name)
            yield ok("package", f"{name} is installed")
        except ImportError as fault:
            yield Finding("package", need, f"{name} cannot be imported: {fault}", why)
    yield check_build()
    yield _daemon(os.path.join(directory, HOST_SOCKET))
    yield check_ina(_PACKAGES_INA if os.path.exists(_PACKAGES_INA) else ina_directory(directory))
    yield check_gpu()
    yield check_mps()
    yield from check_driver()
    yield from check_mig()
    found = ports()
    if found:
        yield ok("rdma", ", ".join(map(str, found)))
    else:
        yield Finding(
            "rdma", Severity.NOTE, "this kernel shows no RDMA device: copy_engine verbs cannot reach lanes here",
            "on a machine with a card: load its driver (mlx5_ib); `rdma link` must list it",
        )  # fmt: skip
    yield from _doca(doca_path)
    if faults.armed:
        yield Finding(
            "fault-points", Severity.ERROR, f"armed: {', '.join(sorted(faults.armed))}; processes will fail on purpose",
            "unset OFFPATH_FAULTS",
        )  # fmt: skip


def check_gpu(find: Callable[[], Sequence[Gpu]] = find_gpus) -> Finding:
    """The NVIDIA GPUs that a helper would serve. No GPU is a note: a requester needs none, a helper can emulate one."""
    try:
        gpus = find()
    except OffpathError as fault:
        what = str(fault).removesuffix(f". {NO_GPU_ADVICE}")
        return Finding("gpu", Severity.NOTE, what, NO_GPU_ADVICE)
    named = ", ".join(f"{gpu.uuid} ({gpu.model.name}{', EMULATED' if gpu.is_emulated else ''})" for gpu in gpus)
    is_emulated = any(gpu.is_emulated for gpu in gpus)
    for gpu in gpus:
        gpu.close()
    if is_emulated:
        return Finding("gpu", Severity.WARNING, named, "no GPU computes: NVIDIA's libraries here are emulators")
    return ok("gpu", named)


def check_mps() -> Finding:
    """Whether NVIDIA's control program for MPS is here."""
    if found := find_program():
        return ok("mps", found)
    return Finding(
        "mps", Severity.NOTE, f"no {PROGRAM}: lanes of a lease take turns on their GPU",
        "for `offpath helper run --mps on`: install the driver's compute utilities",
    )  # fmt: skip


def _pidfds() -> Finding:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as fault:
        return Finding("kernel", Severity.ERROR, f"{platform.release()} has no pidfds: {fault}", "since Linux 5.3")
    return ok("kernel", f"{platform.release()} has pidfds")


def _daemon(path: str) -> Finding:
    """Whether a helper of this user would connect to the host socket. With zmq or comch the daemon runs elsewhere, so
    a missing local daemon is only a note.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        try:
            connect_daemon(sock, path, _CONNECT_S)
        except DaemonNotTrusted as fault:
            return Finding("daemon", Severity.ERROR, str(fault), "find out who runs it; helpers do not connect to it")
        except OptionRefused as fault:
            return Finding("daemon", Severity.ERROR, str(fault), "name a user of this machine, or unset the variable")
        except PermissionError:
            return Finding(
                "daemon", Severity.ERROR, f"{path}: this user may not connect",
                "the daemon's user, or a uid of `host_uids`, may; see the directory's mode",
            )  # fmt: skip
        except OSError as fault:
            return Finding(
                "daemon", Severity.NOTE, f"no daemon listens at {path}: {fault.strerror or fault}",
                "for the host channel unix: start the daemon here, or give --runtime-dir; zmq and comch need none",
            )  # fmt: skip
    return ok("daemon", f"a daemon listens at {path}")


def check_ina(path: str) -> Finding:
    """Whether ranks that this user starts can have a tree: helper and ranks trust only files of their own user."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return Finding("ina-directory", Severity.NOTE, f"{path} does not exist yet", "the helper creates it")
    except OSError as fault:
        return Finding("ina-directory", Severity.WARNING, f"{path}: {fault.strerror}", "see the modes of its folders")
    if found.st_uid != os.geteuid():
        return Finding(
            "ina-directory", Severity.NOTE, f"{path} belongs to uid {found.st_uid}, you are {os.geteuid()}",
            "start ranks of training jobs as that user (docs/training.md)",
        )  # fmt: skip
    if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
        return Finding("ina-directory", Severity.WARNING, f"{path}: no folder, or others may write to it", "chmod 700")
    return ok("ina-directory", f"ranks keep their state files in {path}")


def _doca(path: str) -> Iterator[Finding]:
    try:
        found = devices(doca := load(path))
    except DocaMissing as fault:
        yield Finding(
            "doca", Severity.NOTE, str(fault), "for a BlueField's host: install DOCA's runtime (docs/doca.md)"
        )
        return
    except DeviceError as fault:
        yield Finding("doca-device", Severity.NOTE, str(fault), "permit this user to open the device")
        return
    yield ok("doca", f"{doca.version or 'an unknown release'} in {doca.folder or 'the loader’s path'}")
    if not found:
        yield Finding("doca-device", Severity.NOTE, "DOCA shows no device", "`doca_caps --list-devs` must list it")
    for info in found:
        yield ok("doca-device", f"{info} can {info.able_to or 'do nothing that offpath needs'}")
