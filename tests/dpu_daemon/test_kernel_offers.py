"""Helpers that disagree on a kernel's sequences: the daemon logs it once, and shows the kernel as those serve it that
get its requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offpath.bindings.wire.control import KernelOffer
from offpath.bindings.wire.signatures import KernelSignature
from offpath.dpu_daemon.hosts.kernels import KernelRegistry
from offpath.sched.gpu.oldest_gpu_first import OldestGpuFirst
from offpath.sched.jobs import events
from offpath.sched.jobs.book import JobBook
from offpath.sched.jobs.settings import TenantSpec

from ..sched.gpus import a100

TAKES = events.Kernel(1, 14, "sum", sequences=True)
PLAIN = replace(TAKES, sequences=False)


class Rig:
    def __init__(self) -> None:
        self.book = JobBook((TenantSpec("ada"),), OldestGpuFirst())
        self.registry = KernelRegistry(self.book.ledger)

    def join(self, number: int, name: str, kernel: events.Kernel) -> None:
        signature = KernelSignature(name="sum", model=name, inputs=[], outputs=[], sequences=kernel.sequences)
        self.registry.learn(
            name, [KernelOffer(name="sum", demand=14)], is_emulated=False, signatures={"sum": signature}
        )
        self.send(events.HelperJoined(number, (a100(f"{name}/gpu"),), (kernel,), f"process {number}", name))

    def send(self, event: events.Event) -> None:
        self.book.handle(event, 0)
        self.registry.changed()

    def model(self) -> str:
        signature = self.registry.signature("sum")
        assert signature is not None
        return signature.model


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each.getMessage() for each in caplog.records if getattr(each, "code", "") == "kernel_differs"]
    caplog.clear()
    return found


def test_a_helper_that_takes_no_sequences_where_another_does_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.join(1, "a", TAKES)
    assert logged(caplog) == []
    rig.join(2, "b", PLAIN)
    (line,) = logged(caplog)
    assert "kernel sum" in line
    assert "helper b" in line
    rig.join(3, "c", TAKES)
    assert logged(caplog) == []
    rig.send(events.HelperLost(2))
    rig.join(4, "b", PLAIN)
    assert len(logged(caplog)) == 1, "it joined anew"
    rig.send(events.KernelsReloaded(4, (TAKES,), 1))
    rig.send(events.KernelsReloaded(4, (TAKES,), 2))
    assert logged(caplog) == []


def test_the_signature_is_that_of_a_helper_that_gets_the_requests() -> None:
    rig = Rig()
    rig.join(1, "b", PLAIN)
    assert rig.model() == "b"
    rig.join(2, "a", TAKES)
    rig.join(3, "c", PLAIN)
    assert rig.model() == "a"
    rig.send(events.HelperLost(2))
    assert rig.model() == "c"
