"""Errors of ``sched.inc``, split by who must act.

IncError
├── IncRefused         a tenant's request; the tenant should change it
│   ├── UnknownTemplate    no such template, implementation or property
│   ├── RequestCyclic      composites depend on each other in a circle
│   ├── FlavorsContradict  no flavor satisfies the request
│   ├── DemandInvalid      a demand that is negative, huge or no whole number
│   ├── RequestTooLarge    too many composites, instances or switches
│   ├── Unhostable         no node of the cluster could ever run a task group
│   ├── QuotaExceeded      more than the tenant may hold
│   ├── TenantUnknown      no such tenant, or its user may not submit for it
│   ├── RequestExists      another request of that name is open
│   ├── RequestUnknown     no request of that name
│   ├── ProgramMissing     a task on servers has nothing to run
│   └── RanksMissing       a tree of switches has no servers to sum for
├── TemplateInvalid    a template of the store; its author should mend it
├── PlacementInvalid   a task started where it does not fit, or stopped where it does not run; the caller's fault
└── FlowInvalid        a flow network that is inconsistent or has no feasible flow
"""

from __future__ import annotations

from offpath.sched.errors import SchedError


class IncError(SchedError):
    """Base class of the errors of ``sched.inc``."""


class IncRefused(IncError):
    """The request is invalid, now and later."""


class UnknownTemplate(IncRefused):
    """The store has no such template, implementation or property."""


class RequestCyclic(IncRefused):
    """Directed connections form a circle."""


class FlavorsContradict(IncRefused):
    """No flavor satisfies the request."""


class DemandInvalid(IncRefused):
    """A demand that is negative, huge or no whole number."""


class RequestTooLarge(IncRefused):
    """More composites, instances or switches than one request may have."""


class Unhostable(IncRefused):
    """In every flavor some task group fits no node of the cluster, even if that is idle."""


class QuotaExceeded(IncRefused):
    """The tenant's open requests and this one exceed its quota."""


class TenantUnknown(IncRefused):
    """The configuration has no such tenant, or the user may not submit for it."""


class RequestExists(IncRefused):
    """An open request of that name is different."""


class RequestUnknown(IncRefused):
    """There is no request of that name."""


class ProgramMissing(IncRefused):
    """A composite's tasks on servers have neither a command nor a built-in program."""


class RanksMissing(IncRefused):
    """A composite that can only run as a tree of switches is connected to fewer than two tasks on servers."""


class TemplateInvalid(IncError):
    """The template contradicts the rules of the store."""


class PlacementInvalid(IncError):
    """A task started where it does not fit, or stopped where it does not run."""


class FlowInvalid(IncError):
    """The flow network is inconsistent, or no flow satisfies its supplies."""

    def __init__(self, what: str, line: int | None = None) -> None:
        super().__init__(what if line is None else f"line {line}: {what}")
        self.what, self.line = what, line
