"""Errors of ``sched``: all mean that the caller broke a contract, never that a tenant did.

SchedError
├── IllegalPlacement   a start or overlap that MIG's geometry forbids
├── HostsHeld          a host given to two jobs (`placement.cluster`)
├── EngineError        a simulation that cannot be run (`ina.engine`)
├── JobTooLarge        a simulated job that no cluster of that size holds (`sim.ina.cluster`)
├── Mismatch           ranks of a job name one operation differently (`ina.arbitration`)
├── PatternError       a communication pattern that is none (`ina.patterns`): an operator's file says so
├── TreeUnusable       a tree that does not join its hosts, or has a switch that does not aggregate (`sharing.layout`)
├── PolicyFault        a sharing policy's answer that cannot be used (`sharing.policies`)
├── NothingRecorded    a recording without a job that ran to its end (`sim.whatif`)
├── InvalidTransition  an event that the state does not allow; carries the story so far
├── TopologyError      a network that is none (`topology.graph`): an operator's file says so
├── RecordError        data that no record of INA can have been (`ina.protocol.records`): another process said so
└── PlainError         plain data (of a journal, a checkpoint) that no record can have been
"""

from __future__ import annotations


class SchedError(Exception):
    """Root of what ``sched`` raises."""


class IllegalPlacement(SchedError):
    """The geometry forbids it."""


class PlainError(SchedError):
    """The data is not what a record of ours looks like."""


class InvalidTransition(SchedError):
    """A caller's event contradicts the book."""

    def __init__(self, what: str, story: tuple[str, ...] = ()) -> None:
        super().__init__(what + (": " + " → ".join(story) if story else ""))
        self.story = story
