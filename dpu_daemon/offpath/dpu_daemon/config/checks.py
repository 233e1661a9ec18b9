"""Checks that values of the configuration are consistent with each other and possible on a known GPU.

The GPUs are known only once the helper connects. Here a value is refused only if no model of the MIG table allows it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence

from offpath.bindings.mig import GpuModel, MigProfile, gpu_models
from offpath.bindings.plausible import port_fault
from offpath.dpu_daemon.config.faults import Fault
from offpath.dpu_daemon.config.places import nearest
from offpath.dpu_daemon.config.tables import DaemonConfig, LeaseTable


def _alpha(model: GpuModel, profile: MigProfile) -> int:
    return 100 * profile.compute_slices // model.compute_slices


def _no_profile(name: str) -> str:
    every = tuple({profile.name for model in gpu_models().values() for profile in model.profiles})
    return f"no GPU model has a profile {name[:40]!r}{nearest(name, every)}"


def _known(name: str) -> list[tuple[GpuModel, MigProfile]]:
    """The models that have the profile."""
    return [(model, p) for model in gpu_models().values() for p in model.profiles if p.name == name]


def semantic_faults(config: DaemonConfig) -> Iterator[Fault]:
    """Yields every value that contradicts other values."""
    yield from _tenants(config)
    yield from _pins(config)
    yield from _sizes(config)
    yield from _addresses(config)
    yield from _host_channel(config)
    yield from _worker_copies(config)
    for key in ("server_key_file", "key_file", "host"):
        if config.ina.controller and not getattr(config.ina, key):
            yield Fault(f"ina.{key}", "required if ina.controller is set")


def _tenants(config: DaemonConfig) -> Iterator[Fault]:
    first: dict[str, int] = {}
    for at, tenant in enumerate(config.tenant):
        if first.setdefault(tenant.name, at) != at:
            yield Fault(f"tenant.{at}.name", f"tenant named twice: {tenant.name}")
        if tenant.max_sequences > config.max_sequences:
            text = f"{tenant.name}: {tenant.max_sequences} exceeds max_sequences of the daemon, {config.max_sequences}"
            yield Fault(f"tenant.{at}.max_sequences", text)
        if tenant.profile is None:
            continue
        known = _known(tenant.profile)
        if not known:
            yield Fault(
                f"tenant.{at}.profile",
                _no_profile(tenant.profile),
            )
        elif min(_alpha(*one) for one in known) > tenant.max_share:
            yield Fault(f"tenant.{at}.profile", f"{tenant.profile} exceeds the tenant's max_share")


def _pins(config: DaemonConfig) -> Iterator[Fault]:
    tenants = {tenant.name: tenant for tenant in config.tenant}
    held: Counter[str] = Counter()
    by_gpu: dict[tuple[str, int], list[tuple[int, LeaseTable]]] = {}
    for at, lease in enumerate(config.lease):
        owner = tenants.get(lease.tenant)
        known = _known(lease.profile)
        if owner is None:
            yield Fault(
                f"lease.{at}.tenant", f"lease of an unknown tenant: {lease.tenant}{nearest(lease.tenant, tenants)}"
            )
        if not known:
            yield Fault(
                f"lease.{at}.profile",
                _no_profile(lease.profile),
            )
            continue
        if not any(lease.start in profile.starts for _, profile in known):
            starts = sorted({start for _, profile in known for start in profile.starts})
            yield Fault(f"lease.{at}.start", f"{lease.profile} may start at {', '.join(map(str, starts))}")
            continue
        by_gpu.setdefault((lease.helper, lease.gpu), []).append((at, lease))
        if owner is not None:
            held[owner.name] += min(_alpha(*one) for one in known)
            if held[owner.name] > owner.max_share:
                text = f"tenant {owner.name} would hold {held[owner.name]} %, its max_share is {owner.max_share}"
                yield Fault(f"lease.{at}.profile", text)
    for leases in by_gpu.values():
        yield from _together(leases)


def _together(leases: Sequence[tuple[int, LeaseTable]]) -> Iterator[Fault]:
    """Faults of the leases pinned on one GPU; each names the first lease that it conflicts with."""
    clash = False
    firsts: dict[tuple[str, int], tuple[int, LeaseTable]] = {}  # MIG has a few dozen keys; there may be 1000 leases
    for at, lease in leases:
        for other, before in firsts.values():
            if not any(_fits(model, [before, lease]) for model in gpu_models().values()):
                yield Fault(f"lease.{at}", f"cannot be on one GPU with lease.{other} ({before.profile})")
                clash = True
                break
        firsts.setdefault((lease.profile, lease.start), (at, lease))
    if not clash and not any(_fits(model, [lease for _, lease in leases]) for model in gpu_models().values()):
        yield Fault(
            f"lease.{leases[-1][0]}", f"no GPU model holds all {len(leases)} leases pinned on GPU {leases[0][1].gpu}"
        )


def _fits(model: GpuModel, leases: Sequence[LeaseTable]) -> bool:
    """MIG's rules: known profiles at legal starts, disjoint, within the compute slices and each profile's count."""
    profiles = {p.name: p for p in model.profiles}
    taken: set[int] = set()
    count: Counter[str] = Counter()
    compute = 0
    for lease in leases:
        profile = profiles.get(lease.profile)
        if profile is None or lease.start not in profile.starts:
            return False
        slices = set(range(lease.start, lease.start + profile.memory_slices))
        count[profile.name] += 1
        compute += profile.compute_slices
        if slices & taken or count[profile.name] > profile.max_instances:
            return False
        taken |= slices
    return compute <= model.compute_slices


def _sizes(config: DaemonConfig) -> Iterator[Fault]:
    """Lanes that fit into no instance."""
    table = config.leasing
    room = table.lanes * (table.landing_bytes + table.result_bytes)
    largest = max(profile.memory_bytes for model in gpu_models().values() for profile in model.profiles)
    if room > largest:
        yield Fault("leasing.landing_bytes", f"{table.lanes} lanes need {room} bytes; the largest GPU has {largest}")
        return
    wanted = [(f"tenant.{at}.profile", tenant.profile) for at, tenant in enumerate(config.tenant) if tenant.profile]
    wanted += [(f"lease.{at}.profile", lease.profile) for at, lease in enumerate(config.lease)]
    for path, name in wanted:
        known = _known(name)
        if known and max(profile.memory_bytes for _, profile in known) < room:
            yield Fault(path, f"{name} cannot hold {table.lanes} lanes, which need {room} bytes")


def _addresses(config: DaemonConfig) -> Iterator[Fault]:
    named = {
        "tls.listen": config.tls.listen if config.tls else "",
        "operation.metrics_listen": config.operation.metrics_listen,
        "zmq.bind": config.zmq.bind if config.zmq.bind.startswith("tcp://") else "",
        "ina.controller": config.ina.controller if config.ina.controller.startswith("tcp://") else "",
    }
    for path, address in named.items():
        if fault := port_fault(address):
            yield Fault(path, fault)
    listen = named["tls.listen"]
    if listen and listen == named["operation.metrics_listen"] and not listen.endswith(":0"):
        yield Fault("operation.metrics_listen", "the same address as tls.listen")


def _host_channel(config: DaemonConfig) -> Iterator[Fault]:
    """A host channel that lacks settings or cannot support the copy engine."""
    if config.datapath.host_channel == "unix":
        return
    if config.datapath.copy_engine == "loopback":
        text = "the loopback copy engine needs descriptors of the lanes' memory, which only the unix channel carries"
        yield Fault("datapath.host_channel", text)
    if config.datapath.host_channel != "zmq":
        return
    for key in ("bind", "key_file", "allowed"):
        if not getattr(config.zmq, key):
            yield Fault(f"zmq.{key}", "required for the host channel zmq")


def _worker_copies(config: DaemonConfig) -> Iterator[Fault]:
    """The copy engine `cuda` sends workers the descriptors of requesters' memory on this machine."""
    if config.datapath.copy_engine != "cuda":
        return
    for key, needed in (("fabric", "loopback"), ("host_channel", "unix")):
        if getattr(config.datapath, key) != needed:
            text = f"the copy engine cuda needs {needed}: workers map the requesters' memory, which no other carries"
            yield Fault(f"datapath.{key}", text)


def warnings(config: DaemonConfig, memory_bytes: int | None = None) -> tuple[Fault, ...]:
    """Valid settings that are probably unintended. ``memory_bytes``: memory to assume instead of this machine's."""
    page = os.sysconf("SC_PAGE_SIZE")
    memory = memory_bytes or os.sysconf("SC_PHYS_PAGES") * page
    found = []
    for key in ("landing_bytes", "result_bytes"):
        size = getattr(config.leasing, key)
        if size % page:
            found.append(Fault(f"leasing.{key}", f"{size} is rounded up to {-(-size // page) * page}, whole pages"))
    promised = sum(tenant.max_bytes for tenant in config.tenant)
    if promised > memory:
        text = f"all tenants' max_bytes are {promised >> 20} MiB together, this machine has {memory >> 20} MiB"
        found.append(Fault("tenant", text))
    sequences = sum(tenant.max_sequences for tenant in config.tenant)
    if sequences > config.max_sequences:
        text = f"all tenants' max_sequences are {sequences} together: some tenants can take all {config.max_sequences}"
        found.append(Fault("max_sequences", text))
    for at, tenant in enumerate(config.tenant):
        if tenant.token_file is None and config.tls is None:
            found.append(
                Fault(f"tenant.{at}", f"{tenant.name}: no token_file and no [tls], so no requester can authenticate")
            )
        elif tenant.token_file is None and tenant.uids:
            found.append(Fault(f"tenant.{at}.uids", "uids apply to the Unix socket only, which needs a token_file"))
    return tuple(found)
