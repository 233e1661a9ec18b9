"""Checks DOCA: libraries, release, devices and their abilities. Without DOCA there is one note: loopback needs none."""

from __future__ import annotations

from collections.abc import Iterator

from offpath.bindings.doca.device import (
    Ability,
    Device,
    devices,
    open_device,
    open_representor,
    representors,
    shows_representors,
)
from offpath.bindings.doca.load import Library, load
from offpath.bindings.doca.pieces import LEAST_BYTES
from offpath.bindings.errors import DeviceError, DocaMissing, NoDocaDevice
from offpath.dpu_daemon.config import DaemonConfig
from offpath.dpu_daemon.doctor.findings import Finding, Severity, ok

_KIB = 10
_LIST = "`doca_caps --list-devs` must list it; the BlueField must be in DPU mode, not in NIC mode"
_PERMISSION = "let this user open the device; check that DOCA's release matches the driver's"


def check_doca(config: DaemonConfig | None) -> Iterator[Finding]:
    """Checks the libraries, every device, then what the configuration needs of them."""
    wanted = config is not None and "doca" in (config.datapath.copy_engine, _channel(config))
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
        yield ok("doca-device", f"{info} can {info.able_to or 'do nothing that offpath uses'}{size}")
    if config is not None and config.datapath.copy_engine == "doca":
        yield from _copies(doca, config)
    if config is not None and _channel(config) == "doca":
        yield from _comch(doca, config)


def _channel(config: DaemonConfig) -> str:
    return "doca" if config.datapath.host_channel == "comch" else ""


def _badly(wanted: bool) -> Severity:
    return Severity.ERROR if wanted else Severity.NOTE


def _release(doca: Library) -> Finding:
    where = doca.folder or "where the system's loader finds it"
    if doca.is_emulated:
        return Finding(
            "doca", Severity.NOTE, f"{doca.version} in {where}: an emulator, which copies by the processor",
            "unset OFFPATH_DOCA_PATH unless the emulator is intended",
        )  # fmt: skip
    return ok("doca", f"{doca.version or 'an unknown release'} in {where}")


def _opened(doca: Library, ability: Ability, config: DaemonConfig) -> Device | Finding:
    """The device that the daemon would open, or a finding with the reason why it cannot."""
    try:
        return open_device(doca, ability, config.doca.device)
    except NoDocaDevice as fault:
        return Finding("doca-device", Severity.ERROR, str(fault), f"name another in `doca.device`; {_LIST}")
    except DeviceError as fault:
        return Finding("doca-device", Severity.ERROR, str(fault), _PERMISSION)


def _copies(doca: Library, config: DaemonConfig) -> Iterator[Finding]:
    device = _opened(doca, Ability.COPY, config)
    if isinstance(device, Finding):
        yield device
        return
    try:
        yield _representors(device)
    except DeviceError as fault:
        yield Finding("doca-representor", Severity.NOTE, str(fault), "Comch needs one; copies do not")
    finally:
        device.close()


def _comch(doca: Library, config: DaemonConfig) -> Iterator[Finding]:
    """Checks the Comch server device, its limits of messages and names, and the host function it serves."""
    device = _opened(doca, Ability.SERVE, config)
    if isinstance(device, Finding):
        yield device
        return
    try:
        nbytes, name = (device.limit(f"doca_comch_cap_get_max_{what}") for what in ("msg_size", "name_len"))
        if nbytes < LEAST_BYTES or len(config.doca.comch_name) >= name:
            text = f"{device.info} takes messages of {nbytes} bytes and names of {name - 1}"
            yield Finding("doca-comch", Severity.ERROR, text, "another device, or a shorter `doca.comch_name`")
        else:
            yield ok("doca-comch", f"{device.info} can serve Comch: messages of {nbytes} bytes, names of {name - 1}")
        found = open_representor(device, config.doca.representor)
        yield ok("doca-representor", f"Comch would serve the host's {found.pci}")
    except NoDocaDevice as fault:
        fix = "name the host's function in `doca.representor`, as the host's `lspci -D` shows it"
        yield Finding("doca-representor", Severity.ERROR, str(fault), fix)
    except DeviceError as fault:
        yield Finding("doca-comch", Severity.ERROR, str(fault), _PERMISSION)
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
