"""Errors of ``sched``. Each means that the caller, not a tenant, broke a contract.

SchedError
├── WorkRefused        a job that no cluster could run, or an unknown one (`workload.workload`), from a user
├── UnknownModel       a job names a model that is not known (`placement.models`), from a user
├── NetworkInvalid     an impossible number of a network (`ina.statistical.network`), from an operator's file
├── SpreadInvalid      a job's servers are not in the network (`ina.statistical.steady`)
├── GpusHeld           GPUs given that are not free (`placement.gpu_cluster`)
├── BatchSimulationError  a simulated job that can never be placed (`sim.batches`)
├── SearchTooLarge     a cluster too large for the search of the optimum (`placement.netpack.exact`)
├── IllegalPlacement   a start or overlap that MIG's geometry forbids
├── HostsHeld          a host given to two jobs (`placement.cluster`)
├── EngineError        a simulation that cannot be run (`ina.engine`)
├── JobTooLarge        a simulated job that no cluster of that size holds (`sim.ina.cluster`)
├── Mismatch           ranks of a job name one operation differently (`ina.arbitration`)
├── PatternError       an invalid communication pattern (`ina.patterns`), from an operator's file
├── TreeUnusable       a tree that does not join its hosts, or has a switch that does not aggregate (`sharing.layout`)
├── PolicyFault        an unusable answer of a sharing policy (`sharing.policies`)
├── NothingRecorded    a recording without a job that ran to its end (`sim.whatif`)
├── InvalidTransition  an event that the state does not allow; carries the history so far
├── TopologyError      an invalid network (`topology.graph`), from an operator's file
├── RecordError        data that is not a record of INA (`ina.protocol.records`), from another process
└── PlainError         plain data (of a journal, a checkpoint) that is not a record
"""

from __future__ import annotations

from typing import Any


class SchedError(Exception):
    """Base class of the errors of ``sched``. Each survives pickle and copy, whatever its constructor takes: a pool's
    worker hands it to its parent."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[SchedError], args: tuple[Any, ...], attributes: dict[str, Any]) -> SchedError:
    made = kind.__new__(kind, *args)
    made.__dict__.update(attributes)
    return made


class IllegalPlacement(SchedError):
    """The geometry forbids the placement."""


class PlainError(SchedError):
    """The data does not have the form of a record."""


class InvalidTransition(SchedError):
    """A caller's event contradicts the book."""

    def __init__(self, what: str, story: tuple[str, ...] = ()) -> None:
        super().__init__(what + (": " + " → ".join(story) if story else ""))
        self.story = story
