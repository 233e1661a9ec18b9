"""What migd does for each request: permission first, then the GPU's state, then the work, one operation per GPU."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Literal

from offpath.bindings.errors import (
    DeviceGone,
    DriverMismatch,
    DriverMissing,
    InstanceInUse,
    NvmlDenied,
    NvmlMissing,
    OffpathError,
    PlacementTaken,
    PlaceUnusable,
)
from offpath.bindings.mig import WHOLE
from offpath.bindings.nvml.cut import mig_uuid
from offpath.bindings.nvml.records import GpuInfo, GpuInstance, MigProfileInfo
from offpath.bindings.nvml.session import Nvml
from offpath.host_helper.migd import inventory, protocol
from offpath.host_helper.migd.config import MigdConfig
from offpath.host_helper.migd.cutter import Cutter
from offpath.host_helper.migd.driver import Driver
from offpath.host_helper.migd.errors import MigdRefused
from offpath.host_helper.migd.holders import ITSELF, Caller, Holders
from offpath.host_helper.migd.ledger import MAX_ENTRIES, Entry, Ledger
from offpath.host_helper.migd.nodes import CapabilityNodes, NodeUnusable

logger = logging.getLogger(__name__)
_CODES: tuple[tuple[type[OffpathError], str], ...] = (
    (PlacementTaken, "placement_taken"),
    (InstanceInUse, "in_use"),
    (NvmlDenied, "no_right"),
    (NvmlMissing, "library_missing"),
    (DriverMissing, "driver_missing"),
    (DriverMismatch, "driver_mismatch"),
    (DeviceGone, "gpu_gone"),
    (NodeUnusable, "node"),
    (PlaceUnusable, "ledger"),
)


def as_failed(fault: OffpathError) -> protocol.Failed:
    """An exception as a reply."""
    if isinstance(fault, MigdRefused):
        return protocol.failed(fault.code, fault.detail)
    pids = fault.pids if isinstance(fault, InstanceInUse) else ()
    code = next((code for kind, code in _CODES if isinstance(fault, kind)), "device")
    return protocol.failed(code, str(fault), pids)


class MigService:
    """Handles requests. `handle` may run in several threads, for several GPUs at once."""

    def __init__(
        self, config: MigdConfig, driver: Driver, ledger: Ledger, nodes: CapabilityNodes,
        now_ns: Callable[[], int], sleep: Callable[[float], None],
    ) -> None:  # fmt: skip
        self._config = config
        self._driver = driver
        self._ledger = ledger
        self._nodes = nodes
        self._cutter = Cutter(ledger, sleep, config.destroy_wait_ms / 1e3)
        self._guard = threading.Lock()
        self._busy: dict[str, threading.Lock] = {}
        self.holders = Holders(now_ns)
        self.holders.start(entry.handle for entry in ledger.entries() if entry.kind == "lease")

    def handle(self, request: protocol.Request, caller: Caller) -> protocol.Reply:
        """The reply to a request; a failure becomes `protocol.Failed`."""
        try:
            match request:
                case protocol.List():
                    return self._list()
                case protocol.Describe(gpu=gpu):
                    return self._describe(gpu, caller)
                case protocol.Create():
                    return self._create(request, caller, "lease")
                case protocol.Lay():
                    return self._create(request, caller, "layout")
                case protocol.Destroy(handle=handle):
                    return self._destroy(handle, caller)
                case protocol.Nodes(handle=handle, uid=uid):
                    return self._make_nodes(handle, uid, caller)
                case protocol.Hold(handles=handles):
                    return self._hold(handles, caller)
                case protocol.Remove():
                    return self._remove(request, caller)
                case protocol.Watch():
                    return protocol.Done()
        except OffpathError as fault:
            return as_failed(fault)

    def settle(self) -> None:
        """At the start: end what the previous migd left unfinished. A GPU that does not answer is left for later."""
        for gpu in sorted({entry.gpu for entry in self._ledger.entries()}):
            try:
                with self._driver.session() as nvml, self._alone(gpu):
                    self._settle(nvml, nvml.gpu(gpu))
            except OffpathError as fault:
                logger.warning("%s: the ledger's instances are not settled yet: %s", gpu, fault)

    def expire(self) -> None:
        """Destroy leases that nobody has held for the configured time."""
        for entry in self._ledger.entries():
            if entry.kind == "lease" and self.holders.take_expired(entry.handle, self._config.hold_ms):
                logger.warning("%s at %s of %s: unheld, destroyed", entry.profile, entry.start, entry.gpu)
                try:
                    self._end(entry)
                except OffpathError as fault:
                    logger.warning("%s at %s of %s: %s", entry.profile, entry.start, entry.gpu, fault)
                    self.holders.leave(ITSELF)

    def has_unheld(self) -> bool:
        """Whether `expire` may find something to destroy."""
        return any(self.holders.unheld_ms(entry.handle) >= 0 for entry in self._ledger.entries())

    def managed(self) -> list[str]:
        """UUIDs of the GPUs that are managed and answer. Raises: DeviceError."""
        with self._driver.session() as nvml:
            return [gpu.uuid for gpu in nvml.gpus() if self._config.mode(gpu) is not None]

    def owner(self, gpu: str, gpu_instance: int | None) -> Entry | None:
        """The lease on an instance, or on a whole GPU."""
        number = -1 if gpu_instance is None else gpu_instance
        found = (entry for entry in self._ledger.entries(gpu) if entry.kind == "lease" and entry.state == "ready")
        return next((entry for entry in found if entry.gpu_instance == number), None)

    # -- requests -----------------------------------------------------------------------------------------------------
    def _list(self) -> protocol.Gpus:
        with self._driver.session() as nvml:
            gpus = [(gpu, self._config.mode(gpu)) for gpu in nvml.gpus()]
            lines = [inventory.gpu_line(gpu, mode) for gpu, mode in gpus if mode is not None]
            return protocol.Gpus(driver=nvml.driver, gpus=lines[: protocol.MAX_GPUS])

    def _describe(self, uuid: str, caller: Caller) -> protocol.Gpu:
        with self._driver.session() as nvml, self._alone(self._known(nvml, uuid).uuid):
            gpu = self._known(nvml, uuid)
            mode = self._mode(gpu)
            instances = [] if inventory.problem(gpu, mode) or mode == "whole" else self._settle(nvml, gpu)
            entries = self._ledger.entries(uuid)
            unheld = {entry.handle: self.holders.unheld_ms(entry.handle) for entry in entries}
            usable = not inventory.problem(gpu, mode)
            return protocol.Gpu(
                gpu=inventory.gpu_line(gpu, mode),
                profiles=inventory.profile_lines(nvml, gpu, mode, instances) if usable else [],
                instances=inventory.instance_lines(nvml, gpu, instances, entries, caller, unheld),
                links=inventory.link_lines(nvml, gpu, mode) if usable else [],
            )

    def _create(
        self, wanted: protocol.Create | protocol.Lay, caller: Caller, kind: Literal["lease", "layout"]
    ) -> protocol.Created:
        if kind == "layout":
            self._require_operator(caller)
        with self._driver.session() as nvml, self._alone(self._known(nvml, wanted.gpu).uuid):
            gpu = self._known(nvml, wanted.gpu)
            mode = self._mode(gpu)
            inventory.require_usable(gpu, mode)
            entry = self._ledger.get(wanted.handle)
            if entry is None:
                entry = self._make(nvml, gpu, mode, wanted, caller, kind)
            elif (entry.gpu, entry.profile, entry.start, entry.uid, entry.kind, entry.state) != (
                wanted.gpu, wanted.profile, wanted.start, caller.uid, kind, "ready",
            ):  # fmt: skip
                raise MigdRefused("handle_taken", f"{wanted.handle} names {entry.profile} at {entry.start}")
            if kind == "lease" and not self.holders.take(entry.handle, caller):
                raise MigdRefused("handle_held", f"another connection holds {entry.handle}")
            return self._created(nvml, gpu, entry)

    def _make(
        self, nvml: Nvml, gpu: GpuInfo, mode: protocol.Mode, wanted: protocol.Create | protocol.Lay, caller: Caller,
        kind: Literal["lease", "layout"],
    ) -> Entry:  # fmt: skip
        if len(self._ledger.entries()) >= MAX_ENTRIES:
            raise MigdRefused("too_many", f"migd holds {MAX_ENTRIES} instances")
        if mode == "whole":
            if kind == "layout":
                raise MigdRefused("not_cut", f"{gpu.uuid} is configured as `whole`")
            return self._lend_whole(gpu, wanted, caller)
        instances = self._settle(nvml, gpu)
        profile = _profile(nvml, gpu, wanted.profile)
        entry = Entry(
            handle=wanted.handle, kind=kind, uid=caller.uid, gpu=gpu.uuid, profile=profile.name, start=wanted.start,
            size=profile.memory_slices, generation=self._ledger.next_generation(), state="intended",
        )  # fmt: skip
        if kind == "lease" and (lent := self._lendable(nvml, entry, mode, instances)) is not None:
            self._ledger.put(lent)
            return lent
        if kind == "lease" and mode == "static":
            raise PlacementTaken(f"{wanted.profile} at {wanted.start}: no free instance, and `static` cuts none")
        return self._cutter.create(nvml, entry, profile)

    def _lend_whole(self, gpu: GpuInfo, wanted: protocol.Create | protocol.Lay, caller: Caller) -> Entry:
        if wanted.profile != WHOLE:
            raise MigdRefused("unknown_profile", f"{gpu.uuid} is used whole: its profile is {WHOLE!r}")
        if wanted.start != 0 or self._ledger.entries(gpu.uuid):
            raise PlacementTaken(f"{gpu.uuid} is leased, or start {wanted.start} is not 0")
        entry = Entry(
            handle=wanted.handle, kind="lease", uid=caller.uid, gpu=gpu.uuid, profile=WHOLE, start=0, size=1,
            generation=self._ledger.next_generation(), state="ready", is_borrowed=True, uuid=gpu.uuid,
        )  # fmt: skip
        self._ledger.put(entry)
        return entry

    def _lendable(self, nvml: Nvml, entry: Entry, mode: protocol.Mode, instances: list[GpuInstance]) -> Entry | None:
        """The entry as a lease of an instance that is at its place: of a layout, or in mode ``static`` any."""
        leased = {(e.gpu_instance, e.kind) for e in self._ledger.entries(entry.gpu)}
        for there in instances:
            if (there.profile, there.start) != (entry.profile, entry.start) or not there.compute_instances:
                continue
            is_ours_to_lend = (there.gpu_instance, "layout") in leased or mode == "static"
            if is_ours_to_lend and (there.gpu_instance, "lease") not in leased:
                compute = there.compute_instances[0]
                uuid = mig_uuid(nvml, entry.gpu, there.gpu_instance, compute)
                update = {
                    "state": "ready", "is_borrowed": True, "gpu_instance": there.gpu_instance,
                    "compute_instance": compute, "uuid": uuid,
                }  # fmt: skip
                return entry.model_copy(update=update)
        return None

    def _created(self, nvml: Nvml, gpu: GpuInfo, entry: Entry) -> protocol.Created:
        is_whole = entry.gpu_instance < 0
        memory_mib = gpu.memory_mib if is_whole else _profile(nvml, gpu, entry.profile).memory_mib
        return protocol.Created(
            handle=entry.handle, uuid=entry.uuid, generation=entry.generation, gpu_instance=entry.gpu_instance,
            compute_instance=entry.compute_instance, memory_mib=memory_mib,
        )  # fmt: skip

    def _destroy(self, handle: str, caller: Caller) -> protocol.Done:
        entry = self._ledger.get(handle)
        if entry is None:
            raise MigdRefused("unknown_handle", f"no instance has the handle {handle}")
        self._require_owner(entry, caller)
        if entry.kind != "lease":
            raise MigdRefused("denied", f"{handle} is part of a layout: `offpath mig apply` changes it")
        self._end(entry)
        return protocol.Done()

    def _make_nodes(self, handle: str, uid: int, caller: Caller) -> protocol.NodesMade:
        entry = self._ledger.get(handle)
        if entry is None or entry.state != "ready":
            raise MigdRefused("unknown_handle", f"no instance has the handle {handle}")
        self._require_owner(entry, caller)
        if uid != caller.uid and uid not in self._config.node_uids:
            raise MigdRefused("denied", f"nodes for uid {uid}: neither the caller nor one of `node_uids`")
        if entry.gpu_instance < 0:
            return protocol.NodesMade(paths=[])
        with self._driver.session() as nvml, self._alone(entry.gpu):
            minor = nvml.gpu(entry.gpu).minor
            if self._ledger.get(handle) != entry:
                raise MigdRefused("unknown_handle", f"{handle} was destroyed meanwhile")
            return protocol.NodesMade(paths=self._nodes.make(minor, entry.gpu_instance, entry.compute_instance, uid))

    def _hold(self, handles: list[str], caller: Caller) -> protocol.Held:
        held = []
        for handle in handles:
            entry = self._ledger.get(handle)
            if entry is not None and entry.kind == "lease" and entry.uid == caller.uid:
                if not self.holders.take(handle, caller):
                    raise MigdRefused("handle_held", f"another connection holds {handle}")
                held.append(handle)
        return protocol.Held(handles=held)

    def _remove(self, wanted: protocol.Remove, caller: Caller) -> protocol.Done:
        self._require_operator(caller)
        with self._driver.session() as nvml, self._alone(self._known(nvml, wanted.gpu).uuid):
            gpu = self._known(nvml, wanted.gpu)
            inventory.require_usable(gpu, self._mode(gpu))
            if self._mode(gpu) == "whole":
                raise MigdRefused("not_cut", f"{gpu.uuid} is configured as `whole`")
            there = next((i for i in self._settle(nvml, gpu) if i.gpu_instance == wanted.gpu_instance), None)
            if there is None or (there.profile, there.start) != (wanted.profile, wanted.start):
                return protocol.Done()
            entries = [e for e in self._ledger.entries(gpu.uuid) if e.gpu_instance == there.gpu_instance]
            if any(entry.kind == "lease" for entry in entries):
                raise MigdRefused("denied", f"{wanted.profile} at {wanted.start} of {gpu.uuid} is leased")
            if not entries and not wanted.foreign:
                raise MigdRefused("foreign", f"{wanted.profile} at {wanted.start} of {gpu.uuid} is not migd's")
            entry = entries[0] if entries else self._adopted(gpu, there, caller)
            self._cutter.destroy(nvml, entry)
        return protocol.Done()

    def _adopted(self, gpu: GpuInfo, there: GpuInstance, caller: Caller) -> Entry:
        """A foreign instance that an operator orders to remove: an entry, so that its end survives a kill too."""
        generation = self._ledger.next_generation()
        return Entry(
            handle=f"{generation:032x}", kind="layout", uid=caller.uid, gpu=gpu.uuid, profile=there.profile,
            start=there.start, size=there.size, generation=generation, state="destroying",
            gpu_instance=there.gpu_instance,
        )  # fmt: skip

    # -- steps --------------------------------------------------------------------------------------------------------
    def _end(self, entry: Entry) -> None:
        """End a lease. Raises: InstanceInUse: it is quarantined; DeviceError, PlaceUnusable."""
        if entry.is_borrowed and entry.gpu_instance < 0:
            self._ledger.remove(entry.handle)
        else:
            with self._driver.session() as nvml, self._alone(entry.gpu):
                current = self._ledger.get(entry.handle)
                if current is not None:
                    self._nodes.remove(nvml.gpu(entry.gpu).minor, current.gpu_instance, current.compute_instance)
                    if current.is_borrowed:
                        self._ledger.remove(entry.handle)
                    else:
                        self._cutter.destroy(nvml, current)
        self.holders.forget(entry.handle)

    def _alone(self, gpu: str) -> threading.Lock:
        """The lock of one GPU, which one operation holds at a time. Only GPUs that were seen get one."""
        with self._guard:
            return self._busy.setdefault(gpu, threading.Lock())

    def _settle(self, nvml: Nvml, gpu: GpuInfo) -> list[GpuInstance]:
        """The GPU's instances, once the ledger agrees with them."""
        if self._mode(gpu) == "whole":
            return []
        before = self._ledger.entries(gpu.uuid)
        self._cutter.settle_all(nvml, gpu.uuid)
        instances = nvml.instances(gpu.uuid)
        self._cutter.drop_lost_borrowings(instances, gpu.uuid)
        for entry in before:
            if self._ledger.get(entry.handle) is None:
                self._nodes.remove(gpu.minor, entry.gpu_instance, entry.compute_instance)
                self.holders.forget(entry.handle)
        return instances

    def _known(self, nvml: Nvml, uuid: str) -> GpuInfo:
        """Raises: MigdRefused: migd does not manage the GPU. DeviceGone: it does, and the GPU was lost."""
        try:
            gpu = nvml.gpu(uuid)
        except DeviceGone:
            if uuid not in self._busy and not self._ledger.entries(uuid):
                raise MigdRefused("unknown_gpu", f"{uuid}: the driver lists no such GPU") from None
            raise
        self._mode(gpu)
        return gpu

    def _mode(self, gpu: GpuInfo) -> protocol.Mode:
        mode = self._config.mode(gpu)
        if mode is None:
            raise MigdRefused("unknown_gpu", f"{gpu.uuid} is not one of migd's")
        return mode

    def _require_owner(self, entry: Entry, caller: Caller) -> None:
        if not caller.is_operator and caller.uid != entry.uid:
            raise MigdRefused("denied", f"the instance belongs to uid {entry.uid}, the caller is uid {caller.uid}")

    def _require_operator(self, caller: Caller) -> None:
        if not caller.is_operator:
            raise MigdRefused("denied", f"uid {caller.uid} is no operator of migd")


def _profile(nvml: Nvml, gpu: GpuInfo, name: str) -> MigProfileInfo:
    for profile in nvml.profiles(gpu.uuid):
        if profile.name == name:
            return profile
    known = ", ".join(profile.name for profile in nvml.profiles(gpu.uuid))
    raise MigdRefused("unknown_profile", f"{gpu.uuid} has no profile {name!r}; it has {known}")
