"""DOCA: libraries, release, devices and what they can do. A machine without it hears so once: loopback needs none."""

from __future__ import annotations

from collections.abc import Iterator

from offpath.bindings.doca.device import Ability, Device, devices, open_device, representors, shows_representors
from offpath.bindings.doca.load import Library, load
from offpath.bindings.errors import DeviceError, DocaMissing, NoDocaDevice
from offpath.dpu_daemon.config import DaemonConfig
from offpath.dpu_daemon.doctor.findings import Finding, Severity, ok

_KIB = 10
_LIST = "`doca_caps --list-devs` must list it; the BlueField must be in DPU mode, not in NIC mode"
_PERMISSION = "let this user open the device; is the DOCA of this machine the one of its driver?"


def check_doca(config: DaemonConfig | None) -> Iterator[Finding]:
    """The libraries, then every device, then what the configuration asks of them."""
    wanted = config is not None and config.datapath.copy_engine == "doca"
    try:
        doca = load(config.doca.path if config is not None else "")
    except DocaMissing as fault:
        yield Finding(
            "doca", Severity.ERROR if wanted else Severity.NOTE, str(fault),
            "install DOCA's runtime; or OFFPATH_DOCA_PATH=FOLDER, `doca.path`: where its libraries are",
        )  # fmt: skip
        return
    yield _release(doca)
    try:
        found = devices(doca)
    except DeviceError as fault:
        yield Finding("doca-device", _badly(wanted), str(fault), _PERMISSION)
        return
    if not found:
        yield Finding("doca-device", _badly(wanted), "DOCA shows no device", _LIST)
    for info in found:
        size = f", {info.copy_bytes >> _KIB} KiB in one task" if info.copy_bytes else ""
        yield ok("doca-device", f"{info} can {info.able_to or 'do nothing of ours'}{size}")
    if config is not None and wanted:
        yield from _wanted(doca, config)


def _badly(wanted: bool) -> Severity:
    return Severity.ERROR if wanted else Severity.NOTE


def _release(doca: Library) -> Finding:
    where = doca.folder or "where the system's loader finds it"
    if doca.is_emulated:
        return Finding(
            "doca", Severity.NOTE, f"{doca.version} in {where}: an emulator, which copies by the processor",
            "nothing, where that is meant; else unset OFFPATH_DOCA_PATH",
        )  # fmt: skip
    return ok("doca", f"{doca.version or 'a release that does not say which'} in {where}")


def _wanted(doca: Library, config: DaemonConfig) -> Iterator[Finding]:
    """The very device that the daemon would open."""
    try:
        device = open_device(doca, Ability.COPY, config.doca.device)
    except NoDocaDevice as fault:
        yield Finding("doca-device", Severity.ERROR, str(fault), f"name another in `doca.device`; {_LIST}")
        return
    except DeviceError as fault:
        yield Finding("doca-device", Severity.ERROR, str(fault), _PERMISSION)
        return
    try:
        yield _representors(device)
    except DeviceError as fault:
        yield Finding("doca-representor", Severity.NOTE, str(fault), "Comch needs one; copies do not")
    finally:
        device.close()


def _representors(device: Device) -> Finding:
    if not shows_representors(device):
        return Finding(
            "doca-representor", Severity.NOTE, f"{device.info} shows no functions of the host",
            "Comch needs one; copies do not",
        )  # fmt: skip
    seen = representors(device)
    return ok("doca-representor", f"{device.info} sees the host's {', '.join(seen) or 'nothing'}")
