"""The NVLinks in a helper's offer of a GPU: of whole GPUs, to GPUs of the same helper, within a message's limit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest

from offpath.bindings.cuda.whole import Visible, WholeGpu
from offpath.bindings.loopback.channel import LoopbackConnector
from offpath.bindings.loopback.gpu import EmulatedGpu
from offpath.bindings.ports import Gpu
from offpath.bindings.wire import control
from offpath.bindings.wire.fields import MAX_GPUS
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES
from offpath.host_helper import Helper, offers
from offpath.host_helper.gangs import Gang
from offpath.host_helper.offers import gpu_offer
from offpath.host_helper.supervisor import Supervisor


def whole(uuid: str, links: Mapping[str, int], name: str = "GPU") -> WholeGpu:
    return WholeGpu(Visible(uuid=uuid, name=name, nbytes=1 << 38, is_emulated=True), links)


def linked(gpu: Gpu, *offered: str) -> list[tuple[str, int]]:
    return [(link.uuid, link.links) for link in gpu_offer(gpu, offered).linked]


def test_links_to_gpus_of_other_helpers_and_to_itself_are_left_out() -> None:
    gpu = whole("GPU-a", {"GPU-a": 2, "GPU-b": 4, "GPU-c": 0, "GPU-other": 18})
    assert linked(gpu, "GPU-a", "GPU-b", "GPU-c") == [("GPU-b", 4)]
    assert linked(gpu) == []


def test_a_gpu_in_mig_mode_offers_no_links() -> None:
    gpu = EmulatedGpu("GPU-a", "A100-40GB", slice_bytes=1 << 16)
    gpu.links = {"GPU-b": 4}
    assert linked(gpu, "GPU-a", "GPU-b") == []
    gpu.close()


def test_a_gang_has_the_links_of_its_first_gpu() -> None:
    gang = Gang([whole("GPU-a", {"GPU-b": 4}), whole("GPU-b", {"GPU-a": 4, "GPU-c": 1})])
    assert gang.links == {"GPU-b": 4}


def test_an_offer_with_all_links_and_the_longest_names_fits_a_message() -> None:
    names = [f"GPU-{n:02}".ljust(64, "u") for n in range(40)]
    offer = gpu_offer(whole(names[0], {name: n for n, name in enumerate(names)}, "n" * 64), names)
    assert [(link.uuid, link.links) for link in offer.linked] == [
        (names[n], n) for n in range(39, 39 - MAX_GPUS + 1, -1)
    ]
    assert len(control.encode(offer)) <= MAX_MESSAGE_BYTES
    (most,) = gpu_offer(whole("GPU-a", {"GPU-b": 1000}), ["GPU-b"]).linked
    assert most.links == 64


class Daemon:
    """The daemon's end of a helper's channel: it keeps the offers, and ends the supervisor after the last one."""

    def __init__(self, gpus: int) -> None:
        self._left = gpus
        self._ends = os.pipe()
        self.offers: list[control.GpuOffer] = []
        self.supervisor: Supervisor | None = None

    def send(self, message: bytes) -> bool:
        decoded = control.decode(control.HOST_TO_DAEMON, message)
        if isinstance(decoded, control.GpuOffer):
            self.offers.append(decoded)
            assert self.supervisor is not None
            self.supervisor._stopping = len(self.offers) == self._left
        return True

    def fileno(self) -> int:
        return self._ends[0]

    def close(self) -> None:
        for fd in self._ends:
            os.close(fd)


def offered(*gpus: Gpu) -> dict[str, dict[str, int]]:
    """What a helper with these GPUs tells the daemon: UUID → links."""
    table = Helper()
    table.kernel("nothing", demand=1)(lambda: None)
    daemon: Any = Daemon(len(gpus))
    made = daemon.supervisor = Supervisor("host", LoopbackConnector("/nowhere/host.sock"), list(gpus), table)
    made._serve(daemon)
    made._selector.close()
    for fd in (made._stop_read, made._stop_write):
        os.close(fd)
    daemon.close()
    return {offer.uuid: {link.uuid: link.links for link in offer.linked} for offer in daemon.offers}


def a_helper_offers_the_links_between_its_gpus() -> None:
    a, b = whole("GPU-a", {"GPU-b": 4, "GPU-c": 4}), whole("GPU-b", {"GPU-a": 4})
    assert offered(a, b) == {"GPU-a": {"GPU-b": 4}, "GPU-b": {"GPU-a": 4}}


def test_a_helper_offers_the_links_between_its_gpus() -> None:
    a_helper_offers_the_links_between_its_gpus()


@pytest.mark.parametrize("bug", ["offers_none", "offers_all"])
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def every(gpu: Gpu, _: object) -> list[control.GpuLink]:
        return [control.GpuLink(uuid=uuid, links=links) for uuid, links in gpu.links.items()]

    monkeypatch.setattr(offers, "_linked", every if bug == "offers_all" else lambda gpu, offered: [])
    with pytest.raises(AssertionError):
        a_helper_offers_the_links_between_its_gpus()
