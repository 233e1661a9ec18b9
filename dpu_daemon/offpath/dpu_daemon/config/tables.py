"""Defines the tables of the daemon's configuration: pydantic models, frozen after validation.

Validation is strict: a string is not accepted as a number. Values of the environment and flags, which are text, are
converted by `offpath.dpu_daemon.config.sources` first.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from offpath.bindings.invalid import PCI_ADDRESS
from offpath.bindings.plausible import LEAST_QUOTA
from offpath.bindings.wire.fields import MAX_HELPERS, HelperName
from offpath.sched.gpu.plugin import PREFIX
from offpath.sched.gpu.registry import POLICIES
from offpath.sched.jobs.settings import MS, BookSettings, PinnedLease, TenantSpec

Uid = Annotated[int, Field(ge=0, le=0xFFFF_FFFE)]
FilePath = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]
Bytes = Annotated[int, Field(ge=4096, le=1 << 40)]
_MOST_MS: Final = 7 * 24 * 3600 * 1000
Milliseconds = Annotated[int, Field(ge=0, le=_MOST_MS)]
SomeMilliseconds = Annotated[int, Field(ge=1, le=_MOST_MS)]
Address = Annotated[str, StringConstraints(pattern=r"^.+:[0-9]{1,5}$")]
TenantName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]

KernelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/+-]{0,63}$")]
_MOST_NAMED: Final = 256
"""Kernels that a tenant's rights can name, see `offpath.sched.jobs.kernels.MOST_KERNELS`."""

LINGER_MS: Final = 2000
"""How long a kernel may continue after its job was cancelled or, with ``on_expiry = "kill"``, expired; then its worker
is killed."""
RETRY_OPEN_MS: Final = 1000
"""The pause after an instance failed, doubled with each failure in a row."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TenantTable(_Table):
    """``[[tenant]]``: a tenant's credentials and limits. Sizes in bytes, shares in percent of a GPU."""

    name: TenantName
    token_file: FilePath | None = None
    uids: Annotated[list[Uid], Field(max_length=1024)] = []
    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    max_sessions: Annotated[int, Field(ge=1, le=4096)] = 64
    max_slots: Annotated[int, Field(ge=1, le=1024)] = 64
    max_bytes: Annotated[int, Field(ge=LEAST_QUOTA, le=1 << 50)] = 4 << 30
    max_jobs: Annotated[int, Field(ge=1, le=65536)] = 256
    max_sequences: Annotated[int, Field(ge=1, le=65536)] = 64
    max_share: Annotated[int, Field(ge=14, le=1_000_000)] = 100_000
    max_demand: Annotated[int, Field(ge=1, le=1600)] = 100
    profile: str | None = None
    kernels: Annotated[list[KernelName], Field(max_length=_MOST_NAMED)] | None = None
    """Those that it may call; null: all, also later ones."""

    def permitted(self) -> tuple[str, ...] | None:
        """The kernels as the job book uses them."""
        return None if self.kernels is None else tuple(self.kernels)


class LeaseTable(_Table):
    """``[[lease]]``: a lease that opens when its helper joins and stays open. ``gpu``: in that helper's order."""

    tenant: TenantName
    helper: HelperName = "helper"
    gpu: Annotated[int, Field(ge=0, le=15)] = 0
    profile: str
    start: Annotated[int, Field(ge=0, le=15)] = 0


def _policy(name: str) -> str:
    if name not in POLICIES and not re.fullmatch(rf"{PREFIX}[A-Za-z0-9._-]{{1,64}}", name):
        raise ValueError(f"must be one of {', '.join(POLICIES)}, or {PREFIX}NAME for the entry point of a plug-in")
    return name


class LeasingTable(_Table):
    """``[leasing]``: parameters of the leasing loop; see `offpath.sched.jobs.settings.BookSettings`."""

    policy: Annotated[str, AfterValidator(_policy)] = "oldest-gpu-first"
    """Decides on which instance a job runs and where the next one is created."""
    plugin_ms: Annotated[int, Field(ge=1, le=1000)] = 5
    """Time limit for a policy plug-in's reply; then the built-in policy decides."""
    lanes: Annotated[int, Field(ge=1, le=64)] = 2
    max_lanes: Annotated[int, Field(ge=1, le=64)] = 8
    """A lease gets a lane for each job that fits its share at once, and one more, up to this; never less than
    ``lanes``."""
    landing_bytes: Bytes = 1 << 20
    result_bytes: Bytes = 1 << 20
    keep_warm_ms: Milliseconds = 5000
    grow_after_ms: SomeMilliseconds = 20
    priority_step_ms: Milliseconds = 1000
    """What a step of a request's priority is worth in time of waiting; 0: a higher priority always comes first."""
    reclaim_after_ms: SomeMilliseconds = 100
    min_hold_ms: Milliseconds = 200


class TlsTable(_Table):
    """``[tls]``: TCP connections of requesters. Off unless ``listen`` names an address."""

    listen: Address
    ca_file: FilePath
    cert_file: FilePath
    key_file: FilePath


class DurabilityTable(_Table):
    """``[durability]``: state that outlives the daemon's process. ``journal_mib`` 0 turns the journal off."""

    journal_mib: Annotated[int, Field(ge=0, le=4096)] = 32
    resume_ttl_s: Annotated[int, Field(ge=0, le=3600)] = 60
    """How long a session whose connection was lost is kept for its requester; 0: not at all."""
    adopt_ms: Annotated[int, Field(ge=0, le=600_000)] = 3000
    """How long helper and workers may take to reconnect to a restarted daemon; each sign of them restarts the limit."""
    adopt_max_ms: Annotated[int, Field(ge=0, le=600_000)] = 30_000
    """Overall limit, however many signs arrive; at least ``adopt_ms``."""


class LimitsTable(_Table):
    """``[limits]``: time limits after which an operation counts as failed."""

    kernel_ms: Milliseconds = 600_000
    """Longest run of a kernel; 0: no limit. After it, its worker is killed and the job is FAILED."""
    on_expiry: Literal["kill", "finish"] = "kill"
    """When a budget ends during the kernel: ``kill`` its worker after `LINGER_MS`, or let it ``finish`` (`kernel_ms`
    still applies). Either way the job is EXPIRED at once."""
    open_ms: SomeMilliseconds = 30_000
    """Longest opening of a lease: until all its lanes are reserved. After it, the lease is closed and tried again."""
    load_ms: Milliseconds = 600_000
    """Longest loading of models by the workers of a lease, from then on; 0: no limit. After it, likewise."""
    scrub_ms: SomeMilliseconds = 30_000
    helper_ms: Annotated[int, Field(ge=100, le=_MOST_MS)] = 5000
    """A helper that sends nothing for this long is lost."""
    drain_ms: Milliseconds = 30_000
    """How long running jobs may take to finish when the daemon, or a removed tenant, is drained."""
    kernel_gone_ms: Milliseconds = 600_000
    """How long a kernel may be without a helper that serves it; 0: no limit. After it, its name is removed and its
    queued jobs are CANCELLED."""
    sequence_idle_ms: SomeMilliseconds = 10_000
    """How long a sequence without a request lasts."""
    sequence_leave_ms: SomeMilliseconds = 1000
    """How long sequences may stay on a lease whose room others need. Then they end."""


class DatapathTable(_Table):
    """``[datapath]``: transport of requests, and the copy engine between the DPU and the host's instances."""

    fabric: Literal["loopback", "verbs"] = "loopback"
    copy_engine: Literal["loopback", "verbs", "doca", "cuda"] = "loopback"
    host_channel: Literal["unix", "zmq", "comch"] = "unix"
    """Transport of helper and workers: the socket in the runtime directory; ZeroMQ, see `ZmqTable`; or DOCA Comch, see
    `DocaTable`."""
    spin_us: Annotated[int, Field(ge=0, le=1000)] = 0
    """How long the daemon polls for the next event of a request before it sleeps; 0: not at all."""


class RdmaTable(_Table):
    """``[rdma]``: the port for data path parts set to ``verbs``; see `offpath.bindings.verbs.devices.choose`.

    Empty: any; ambiguity is refused. ``seal``: what binds the key of a session's slots to its queue pair: the
    protection domain, or also a memory window of type 2B."""

    device: Annotated[str, StringConstraints(max_length=64)] = ""
    netdev: Annotated[str, StringConstraints(max_length=16)] = ""
    near: Annotated[str, StringConstraints(pattern=r"^(|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])$")] = ""
    seal: Literal["pd", "mw"] = "pd"


class ZmqTable(_Table):
    """``[zmq]``: address and keys for helper and workers if ``datapath.host_channel`` is ``zmq``.

    ``allowed``: a folder with a .pub file per host, or a file of lines NAME KEY."""

    bind: Annotated[str, StringConstraints(pattern=r"^(|tcp://.+:[0-9]{1,5}|ipc:///.{1,100})$")] = ""
    key_file: Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")] = ""
    allowed: Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")] = ""
    domain: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "offpath"


class InaTable(_Table):
    """``[ina]``: the agent of INA sharing. Off unless ``controller`` names an address.

    ``host``: the name of this daemon's host in the controller's topology and list of keys."""

    controller: Annotated[str, StringConstraints(pattern=r"^(|tcp://.+:[0-9]{1,5}|ipc:///.{1,100})$")] = ""
    server_key_file: Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")] = ""
    key_file: Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")] = ""
    host: Annotated[str, StringConstraints(pattern=r"^(|[A-Za-z0-9][A-Za-z0-9._-]{0,62})$")] = ""


class DocaTable(_Table):
    """``[doca]``: the device for DOCA, by PCI address, RDMA device or interface; empty: the only capable one. ``path``:
    the folder of its libraries; empty: where DOCA's packages install them.

    If ``datapath.host_channel`` is ``comch``: ``representor``, the PCI address of the host function that may connect,
    as seen on the host; empty: the only one. ``comch_name``: of the server; the host uses the same name."""

    device: Annotated[str, StringConstraints(max_length=64, pattern=r"^[\x21-\x7e]*$")] = ""
    path: Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")] = ""
    representor: Annotated[str, StringConstraints(pattern=PCI_ADDRESS)] = ""
    comch_name: Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,64}$")] = "offpath"


class OperationTable(_Table):
    """``[operation]``: logs, metrics and operator access. ``metrics_listen`` HOST:PORT; empty: off."""

    metrics_listen: Annotated[str, StringConstraints(pattern=r"^(|.+:[0-9]{1,5})$")] = ""
    log: Literal["text", "json"] = "text"
    admin_uids: Annotated[list[Uid], Field(max_length=1024)] = []
    """Uids that may use the admin socket, besides root and the daemon's own user."""


class DaemonConfig(_Table):
    """The whole file."""

    tenant: Annotated[list[TenantTable], Field(min_length=1, max_length=1024)]
    lease: Annotated[list[LeaseTable], Field(max_length=1024)] = []
    leasing: LeasingTable = LeasingTable()
    tls: TlsTable | None = None
    durability: DurabilityTable = DurabilityTable()
    limits: LimitsTable = LimitsTable()
    datapath: DatapathTable = DatapathTable()
    rdma: RdmaTable = RdmaTable()
    zmq: ZmqTable = ZmqTable()
    doca: DocaTable = DocaTable()
    ina: InaTable = InaTable()
    operation: OperationTable = OperationTable()
    host_uids: Annotated[list[Uid], Field(max_length=1024)] = []
    helper_names: Annotated[list[HelperName], Field(max_length=64)] = []
    """Names under which helpers may join; none: any name."""
    max_helpers: Annotated[int, Field(ge=1, le=MAX_HELPERS)] = 8
    max_jobs: Annotated[int, Field(ge=1, le=1 << 20)] = 65536
    max_sequences: Annotated[int, Field(ge=1, le=65536)] = 4096

    def tenant_specs(self) -> tuple[TenantSpec, ...]:
        """The tenants as the job book uses them."""
        return tuple(
            TenantSpec(
                t.name, t.weight, t.max_jobs, t.max_share, t.max_demand, t.profile, t.permitted(), t.max_sequences
            )
            for t in self.tenant
        )

    def book_settings(self) -> BookSettings:
        """Parameters of the leasing loop in the book's units."""
        table, limits = self.leasing, self.limits
        return BookSettings(
            lanes=table.lanes,
            max_lanes=table.max_lanes,
            landing_bytes=table.landing_bytes,
            result_bytes=table.result_bytes,
            max_jobs=self.max_jobs,
            keep_warm_ns=table.keep_warm_ms * MS,
            grow_after_ns=table.grow_after_ms * MS,
            priority_step_ns=table.priority_step_ms * MS,
            reclaim_after_ns=table.reclaim_after_ms * MS,
            min_hold_ns=table.min_hold_ms * MS,
            kernel_ns=limits.kernel_ms * MS,
            linger_ns=LINGER_MS * MS,
            retry_open_ns=RETRY_OPEN_MS * MS,
            kills_expired=limits.on_expiry == "kill",
            open_ns=limits.open_ms * MS,
            load_ns=limits.load_ms * MS,
            scrub_ns=limits.scrub_ms * MS,
            drain_ns=limits.drain_ms * MS,
            kernel_gone_ns=limits.kernel_gone_ms * MS,
            max_sequences=self.max_sequences,
            sequence_idle_ns=limits.sequence_idle_ms * MS,
            sequence_leave_ns=limits.sequence_leave_ms * MS,
            policy=table.policy,
        )

    def pins(self) -> tuple[PinnedLease, ...]:
        """Leases that the book opens without a request."""
        return tuple(
            PinnedLease(lease.tenant, lease.gpu, lease.profile, lease.start, lease.helper) for lease in self.lease
        )

    def allowed_host_uids(self) -> frozenset[int]:
        """Uids that may connect as a helper: the daemon's own and the listed ones."""
        return frozenset(self.host_uids) | {os.getuid()}
