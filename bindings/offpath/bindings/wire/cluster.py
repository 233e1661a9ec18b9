"""Messages between a controller and the agents of its hosts, over ZeroMQ: JSON, cut by `wire.parts`.

Agent → controller: AgentHello, AgentReport. Controller → agent: AskAll, NewEpoch, Farewell. Records travel as plain
data; `sched.ina.protocol.records` reads them.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, TypeAdapter

from offpath.bindings.wire.fields import PROTOCOL_VERSION, STRICT, U16, Name, Term

MOST_STATES: Final = 4096
Proof = Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f]*$")]
"""Proof of a term, from the controller that issued it; empty: none. Agents return it unread."""


class _Message(BaseModel):
    model_config = STRICT


class AgentHello(_Message):
    """First message of an agent. ``host``: the name that its key is listed as; a difference means a
    misconfiguration."""

    kind: Literal["agent_hello"] = "agent_hello"
    version: U16 = PROTOCOL_VERSION
    host: Name


class AgentReport(_Message):
    """The ranks on this host: those that changed, or all (``is_whole``) in reply to AskAll. ``term``: the greatest that
    this agent knows, with its ``proof``. A term above the controller's, with a valid proof, means that another
    controller has taken over."""

    kind: Literal["agent_report"] = "agent_report"
    term: Term
    proof: Proof = ""
    is_whole: bool = False
    states: Annotated[list[dict[str, Any]], Field(max_length=MOST_STATES)]
    patterns: Annotated[list[dict[str, Any]], Field(max_length=MOST_STATES)] = []


class AskAll(_Message):
    """The controller of this term is active: report the state of all ranks of this host."""

    kind: Literal["ask_all"] = "ask_all"
    version: U16 = PROTOCOL_VERSION
    term: Term
    proof: Proof = ""


class NewEpoch(_Message):
    """An epoch for all ranks of its job on this host."""

    kind: Literal["new_epoch"] = "new_epoch"
    epoch: dict[str, Any]


class Farewell(_Message):
    """The controller hangs up; the text gives the reason."""

    kind: Literal["farewell"] = "farewell"
    code: Name
    detail: Annotated[str, Field(max_length=512)]


ToController = AgentHello | AgentReport
ToAgent = AskAll | NewEpoch | Farewell
TO_CONTROLLER: Final[TypeAdapter[ToController]] = TypeAdapter(Annotated[ToController, Field(discriminator="kind")])
TO_AGENT: Final[TypeAdapter[ToAgent]] = TypeAdapter(Annotated[ToAgent, Field(discriminator="kind")])
