"""Exceptions of requests for servers and switches (`sched.inc`)."""

from __future__ import annotations

from typing import Final

from offpath.cli.errors.registry import entries

_SEE: Final = "see its text; docs/hire.md"
_CODES: Final = (
    (
        "unknown_template",
        "UnknownTemplate",
        "a request names a template, an implementation, a composite or a dimension that is not known",
        "use one of those that its text lists",
    ),
    (
        "request_cyclic",
        "RequestCyclic",
        "composites depend on each other in a circle",
        "make one of the connections bidirectional",
    ),
    (
        "flavors_contradict",
        "FlavorsContradict",
        "no choice of implementations satisfies the request, or what it is tied to",
        "exclude fewer implementations, or remove the tie",
    ),
    (
        "demand_invalid",
        "DemandInvalid",
        "a demand is negative, huge or no whole number",
        "use a number in the range of its text",
    ),
    (
        "request_too_large",
        "RequestTooLarge",
        "a request has too many composites, connections, instances or switches",
        "split the request",
    ),
    (
        "unhostable",
        "Unhostable",
        "in every flavor some task group fits no node of the cluster, even if that is idle",
        "demand less, or fewer instances",
    ),
    (
        "quota_exceeded",
        "QuotaExceeded",
        "the tenant's open requests and this one exceed its quota",
        "cancel a request, demand less, or raise the quota in `[[inc.tenant]]`",
    ),
    (
        "tenant_unknown",
        "TenantUnknown",
        "`[[inc.tenant]]` has no such tenant, or this user may not submit for it",
        "use a tenant that its text lists, or add the uid to the tenant",
    ),
    ("request_exists", "RequestExists", "another request of this name is open", "cancel it, or choose another name"),
    ("request_unknown", "RequestUnknown", "no request has this name", "`offpath inc list --ended` lists all"),
    (
        "program_missing",
        "ProgramMissing",
        "a composite's tasks on servers have nothing to run",
        "give the composite `argv`, or a `service`",
    ),
    (
        "ranks_missing",
        "RanksMissing",
        "a composite that can only run as `sharp` has fewer than two tasks on servers to sum for",
        "connect it to a composite of the template `server`",
    ),
)
"""Refusals of requests: the code of the admin socket, the exception behind it, cause, fix."""

ENTRIES: Final = (
    *entries("admin", *[(code, cause, fix) for code, _, cause, fix in _CODES]),
    *entries("exception", *[(name, cause, fix) for _, name, cause, fix in _CODES]),
    *entries(
        "admin",
        (
            "no_inc",
            "the job manager's configuration has no `[inc]`",
            "add servers and switches, docs/hire.md",
        ),
        (
            "switch_full",
            "an emulated switch has no room for a task now; its text names what is scarce",
            "nothing: the task is placed again",
        ),
        (
            "never_fits",
            "an emulated switch could not run a task even if it were idle",
            "make `[[inc.switch]]` say what the switch was started with",
        ),
    ),
    *entries(
        "exception",
        ("IncError", "base class of the errors of requests for servers and switches", _SEE),
        ("IncRefused", "base class of refused requests for servers and switches", _SEE),
        ("TemplateInvalid", "a template breaks a rule of the store; its text names the place", "fix the template"),
        (
            "TaskRefused",
            "a switch has no room for a task now; its text names what is scarce",
            "nothing: the task is placed again",
        ),
        ("DatagramInvalid", "a datagram, key or address breaks the rules of the key-value services", "see its text"),
        (
            "LinkAway",
            "a switch or a key-value service does not answer",
            "see whether its process runs; it is asked again",
        ),
        (
            "PlacementInvalid",
            "a task was started where it does not fit, or stopped where it does not run",
            "report it: the caller of the policy is wrong",
        ),
        (
            "FlowInvalid",
            "a flow network has a number out of range, an undeclared node, or no feasible flow",
            "fix the line that its text names",
        ),
    ),
)
