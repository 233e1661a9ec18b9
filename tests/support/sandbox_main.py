"""What a unit's sandbox does to a process, done without systemd: UNIT WRITABLE CALLS COMMAND…, as root.

From the unit's own lines: a mount namespace with a read-only system and a /proc of processes only, bounding set, uid,
limits, umask, network and IPC namespaces. Address families are left out. System calls are those in the file CALLS, with
memory that cannot become executable where the unit says so; "" for any. Then it becomes COMMAND, with its process id.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import sys
from pathlib import Path

from confine import confine  # the script's own folder is first on sys.path

NOBODY = 65534
_NEWNS, _NEWNET, _NEWIPC = 0x00020000, 0x40000000, 0x08000000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP = 38, 24
_CAPABILITIES = {"CAP_CHOWN": 0, "CAP_MKNOD": 27}
_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}{arguments}: {os.strerror(ctypes.get_errno())}")


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    as_c = [text.encode() if text is not None else None for text in (source, target, kind, options)]
    call("mount", as_c[0], as_c[1], as_c[2], ctypes.c_ulong(flags), as_c[3])


def read_unit(path: str) -> dict[str, str]:
    """The last value of each key."""
    lines = Path(path).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def is_on(unit: dict[str, str], key: str) -> bool:
    return unit.get(key) in ("yes", "true", "strict")


def read_only(path: str) -> None:
    mount(path, path, None, _BIND | _REC)
    mount(path, path, None, _REMOUNT | _BIND | _RDONLY)


def file_systems(unit: dict[str, str], writable: str) -> None:
    """ProtectSystem=strict, PrivateTmp=, ProtectHome=, ProtectProc=, ProcSubset=; ``writable`` is the unit's runtime
    directory."""
    mount("none", "/", None, _REC | _PRIVATE)
    if is_on(unit, "PrivateTmp"):  # the test's own folder lies in /tmp, so that one stays as it is
        mount("tmpfs", "/var/tmp", "tmpfs", _NOSUID | _NODEV, "mode=1777")
    if is_on(unit, "ProtectSystem"):
        mount(writable, writable, None, _BIND)
        for name in ("usr", "etc", "opt", "boot", "srv", "work", "root", "home"):
            if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}"):
                read_only(f"/{name}")
    if is_on(unit, "ProtectHome"):
        for path in ("/home", "/root"):
            if os.path.isdir(path):
                hide(path)
    options = []
    if "ProtectProc" in unit:
        options.append(f"hidepid={unit['ProtectProc']}")
    if "ProcSubset" in unit:
        options.append(f"subset={unit['ProcSubset']}")
    mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC, ",".join(options))


def hide(path: str) -> None:
    """Nothing is left in it but the interpreter, if that lies there: an installed one would not."""
    prefix = os.path.realpath(sys.base_prefix)
    if os.path.commonpath([prefix, path]) != path:
        mount("tmpfs", path, "tmpfs", _RDONLY | _NOSUID, "mode=000")
        return
    interpreter = os.open(prefix, os.O_PATH)
    mount("tmpfs", path, "tmpfs", _NOSUID, "mode=755")
    os.makedirs(prefix, mode=0o755)
    mount(f"/proc/self/fd/{interpreter}", prefix, None, _BIND)
    mount(path, path, None, _REMOUNT | _RDONLY)
    os.close(interpreter)


def limits(unit: dict[str, str]) -> None:
    for key, number in (("LimitNOFILE", resource.RLIMIT_NOFILE), ("LimitCORE", resource.RLIMIT_CORE)):
        value = int(unit[key])
        hard = resource.getrlimit(number)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)  # where even root may not raise it
        resource.setrlimit(number, (value, value))
    os.umask(int(unit["UMask"], 8))


def rights(unit: dict[str, str]) -> None:
    """CapabilityBoundingSet=, User= (root or another), NoNewPrivileges=."""
    kept = {_CAPABILITIES[name] for name in unit["CapabilityBoundingSet"].split()}
    last = 40
    for capability in range(last + 1):
        if capability not in kept:
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # kernels that do not know it say so
    if unit["User"] != "root":  # root has the bounding set's capabilities once it becomes the command
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    assert is_on(unit, "NoNewPrivileges")
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def environment(text: str) -> None:
    """Environment= and UnsetEnvironment=, %b as systemd writes it: the boot id without dashes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    os.environ.pop("OFFPATH_BOOT_ID", None)
    for name, value in re.findall(r"^Environment=(\w+)=(.*)$", text, re.MULTILINE):
        os.environ[name] = value.replace("%b", boot)
    for name in re.findall(r"^UnsetEnvironment=(\w+)$", text, re.MULTILINE):
        os.environ.pop(name, None)


def main() -> None:
    path, writable, calls, *command = sys.argv[1:]
    unit = read_unit(path)
    environment(Path(path).read_text())
    network = _NEWNET if is_on(unit, "PrivateNetwork") else 0
    call("unshare", _NEWNS | _NEWIPC | network)
    file_systems(unit, writable)
    limits(unit)
    if unit["User"] != "root":
        os.chown(writable, NOBODY, NOBODY)
    rights(unit)
    if calls:
        confine(Path(calls).read_text().split(), deny_exec=is_on(unit, "MemoryDenyWriteExecute"))
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
