"""``[inc]`` of the job manager's configuration: servers, switches, tenants, and the round's period."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from offpath.bindings.wire.fields import Name
from offpath.sched.inc.live.ports import Ports
from offpath.sched.inc.live.quotas import Quota
from offpath.sched.inc.resources import Resources, ServerSpec, SwitchSpec
from offpath.sched.inc.units import MOST_DEMAND, MOST_SERVICES, SWITCH_CAPACITY
from offpath.sched.topology.declared import Declared, connected

NodeName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Amount = Annotated[int, Field(ge=0, le=MOST_DEMAND)]
AbsolutePath = Annotated[str, StringConstraints(max_length=4096, pattern=r"^(/[^\x00]*)?$")]
_MOST: Final = 32_768


def _address(text: str) -> str:
    ipaddress.ip_address(text)
    return text


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ServerTable(_Table):
    """``[[inc.server]]``: a node of the engine, and what of it requests may use. ``address``: where clients and
    switches reach its built-in programs."""

    name: NodeName
    cpu_milli: Amount
    memory_mib: Amount
    address: Annotated[str, AfterValidator(_address)] = "127.0.0.1"


class SwitchTable(_Table):
    """``[[inc.switch]]``: ``hosts`` and ``switches`` are below it. ``control``: socket of the emulated switch; empty:
    its capacity is only counted, and its tasks run nothing. ``services``: what it may run; empty: all whose features
    it has."""

    name: NodeName
    control: Annotated[str, StringConstraints(max_length=107, pattern=r"^(/[^\x00]*)?$")] = ""
    features: Annotated[list[Name], Field(max_length=64)] = []
    services: Annotated[list[Name], Field(max_length=64)] = []
    recirculation: Amount = SWITCH_CAPACITY[0]
    stages: Amount = SWITCH_CAPACITY[1]
    sram_kib: Amount = SWITCH_CAPACITY[2]
    most_services: Annotated[int, Field(ge=0, le=64)] = MOST_SERVICES
    hosts: Annotated[list[NodeName], Field(max_length=4096)] = []
    switches: Annotated[list[NodeName], Field(max_length=4096)] = []

    def spec(self) -> SwitchSpec:
        """As `sched.inc` has it."""
        return SwitchSpec(
            frozenset(self.features), (self.recirculation, self.stages, self.sram_kib),
            frozenset(self.services) or None, self.most_services,
        )  # fmt: skip


class TenantTable(_Table):
    """``[[inc.tenant]]``: ``uids`` may submit for it, besides root and the job manager's user. The amounts bound all
    its open requests together, in their dearest flavors."""

    name: Name
    uids: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 32)]], Field(max_length=1024)] = []
    cpu_milli: Amount = MOST_DEMAND
    memory_mib: Amount = MOST_DEMAND
    recirculation: Amount = MOST_DEMAND
    stages: Amount = MOST_DEMAND
    sram_kib: Amount = MOST_DEMAND
    requests: Annotated[int, Field(ge=0, le=4096)] = 1_000

    def quota(self) -> Quota:
        """As `sched.inc.live` has it."""
        amounts = (self.cpu_milli, self.memory_mib, self.recirculation, self.stages, self.sram_kib)
        return Quota(amounts, self.requests)


class IncTable(_Table):
    """``[inc]``. Without it the job manager takes no requests for servers and switches. ``first_port``,
    ``last_port``: of built-in programs on servers. ``tenant``: none: any name is a tenant, without quotas."""

    round_ms: Annotated[int, Field(ge=10, le=600_000)] = 500
    preempt_ms: Annotated[int, Field(ge=0, le=600_000)] = 2_000
    """A flavor that did not get all its places by then is taken back."""
    first_port: Annotated[int, Field(ge=1024, le=65_535)] = 21_000
    last_port: Annotated[int, Field(ge=1024, le=65_535)] = 21_999
    python: AbsolutePath = ""
    """Interpreter with offpath on the servers; empty: the job manager's own."""
    controller: AbsolutePath = ""
    """Runtime directory of the INA controller, which makes the trees of SHArP; empty: SHArP is only counted."""
    server: Annotated[list[ServerTable], Field(min_length=1, max_length=_MOST)]
    switch: Annotated[list[SwitchTable], Field(min_length=1, max_length=_MOST)]
    tenant: Annotated[list[TenantTable], Field(max_length=1024)] = []

    @model_validator(mode="after")
    def _check(self) -> IncTable:
        for what, names in (("server", [each.name for each in self.server]),
                            ("tenant", [each.name for each in self.tenant])):  # fmt: skip
            if len(set(names)) < len(names):
                raise ValueError(f"a {what} is listed twice")
        if self.first_port > self.last_port:
            raise ValueError("first_port is above last_port")
        below = {host for each in self.switch for host in each.hosts}
        if below != {each.name for each in self.server}:
            odd = sorted(below ^ {each.name for each in self.server})
            raise ValueError(f"{odd[0]}: each server is below a switch, and each host of a switch is a server")
        return self

    def resources(self) -> Resources:
        """The idle cluster. Raises: TopologyError: the switches do not form a network."""
        topology = connected([Declared(each.name, each.switches, each.hosts) for each in self.switch])
        servers = {each.name: ServerSpec((each.cpu_milli, each.memory_mib)) for each in self.server}
        switches = {each.name: each.spec() for each in self.switch}
        hosts, names = topology.names[: topology.hosts], topology.names[topology.hosts :]
        return Resources(topology, [servers[name] for name in hosts], [switches[name] for name in names])

    def ports(self) -> Ports:
        """Where built-in programs listen."""
        return Ports({each.name: each.address for each in self.server}, self.first_port, self.last_port)

    def quotas(self) -> dict[str, Quota] | None:
        """By tenant; None: no tenant is listed."""
        return {each.name: each.quota() for each in self.tenant} or None
