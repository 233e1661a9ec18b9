"""A policy plug-in on the simulation's loop: the child's code without its process; it fails by the schedule's seed."""

from __future__ import annotations

from random import Random

from offpath.sched.gpu.greedy import GreedyFirstFit
from offpath.sched.gpu.oldest_gpu_first import OldestGpuFirst
from offpath.sched.gpu.plugin import PREFIX

from ..support.advisors import Hosted

NAME = "simulated"
POLICY = PREFIX + NAME


class SimPlugin(Hosted):
    """In the place of `plugins.PluginProcess`. Both policies inside place whatever has room: what
    the judge asks of queues holds for them."""

    name = NAME

    def __init__(self, random: Random, fault: float) -> None:
        super().__init__(random.choice((GreedyFirstFit, OldestGpuFirst)), random, fault)

    @property
    def is_alive(self) -> bool:
        return not self.is_dismissed

    def close(self) -> None:
        self.is_dismissed = True
