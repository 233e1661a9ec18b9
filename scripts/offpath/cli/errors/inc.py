"""Exceptions of requests for servers and switches (`sched.inc`)."""

from __future__ import annotations

from typing import Final

from offpath.cli.errors.registry import entries

_SEE: Final = "see its text; docs/hire.md"

ENTRIES: Final = (
    *entries(
        "exception",
        ("IncError", "base class of the errors of requests for servers and switches", _SEE),
        ("IncRefused", "base class of refused requests for servers and switches", _SEE),
        (
            "UnknownTemplate",
            "a request names a template, an implementation, a composite or a dimension that is not known",
            "use one of those that its text lists",
        ),
        ("RequestCyclic", "composites depend on each other in a circle", "make one of the connections bidirectional"),
        (
            "FlavorsContradict",
            "no choice of implementations satisfies the request, or what it is tied to",
            "exclude fewer implementations, or remove the tie",
        ),
        ("DemandInvalid", "a demand is negative, huge or no whole number", "use a number in the range of its text"),
        (
            "RequestTooLarge",
            "a request has too many composites, connections, instances or switches",
            "split the request",
        ),
        (
            "Unhostable",
            "in every flavor some task group fits no node of the cluster, even if that is idle",
            "demand less, or fewer instances",
        ),
        ("TemplateInvalid", "a template breaks a rule of the store; its text names the place", "fix the template"),
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
