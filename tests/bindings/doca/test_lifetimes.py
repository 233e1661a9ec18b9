"""Handles keep their parents, close their children first, and may be closed twice and in any order."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from offpath.bindings.doca.buffers import Inventory
from offpath.bindings.doca.device import Ability, Device, open_device, open_representor
from offpath.bindings.doca.dma import Dma, Place
from offpath.bindings.doca.engine import Engine
from offpath.bindings.doca.load import Library
from offpath.bindings.doca.memory import Mmap
from offpath.bindings.errors import DocaError, ResourceClosed
from offpath.bindings.memory.region import Region

Regions = Callable[[bytes], Region]


def nothing(_serial: int, _is_good: bool) -> None:
    """Nobody waits for the task."""


def test_a_device_closes_what_was_made_of_it_the_last_first(doca: Library, regions: Regions) -> None:
    device, engine = open_device(doca, Ability.COPY), Engine(doca)
    memory = Mmap.ours(device, regions(bytes(4096)).view, is_written=True)
    representor, dma = open_representor(device), Dma(device, engine, nothing)
    device.close()
    assert [each.is_closed for each in (device, memory, representor, dma, dma.inventory)] == [True] * 5
    assert not engine.is_closed
    engine.close()


@pytest.mark.parametrize("order", ["children first", "parents first"])
def test_everything_may_be_closed_twice_in_any_order(doca: Library, regions: Regions, order: str) -> None:
    device, engine = open_device(doca, Ability.COPY), Engine(doca)
    dma = Dma(device, engine, nothing)
    every = [device, engine, Mmap.ours(device, regions(bytes(4096)).view, is_written=False), Inventory(doca, 4), dma]
    for handle in [*every, *every] if order == "parents first" else [*reversed(every), *every]:
        handle.close()
        assert handle.is_closed


def test_what_is_closed_is_no_longer_handed_to_doca(doca: Library) -> None:
    engine = Engine(doca)
    engine.close()
    with pytest.raises(ResourceClosed, match="the progress engine is closed"):
        engine.progress()
    with pytest.raises(ResourceClosed):
        engine.request()


def test_a_child_keeps_its_parent(doca: Library, regions: Regions) -> None:
    device = open_device(doca, Ability.COPY)
    memory, alive = Mmap.ours(device, regions(bytes(4096)).view, is_written=False), weakref.ref(device)
    del device
    gc.collect()
    kept = alive()
    assert kept is not None
    kept.close()
    assert memory.is_closed


def test_what_was_never_closed_warns(doca: Library) -> None:
    engine = Engine(doca)
    pointer = engine.pointer
    with pytest.warns(ResourceWarning, match="a DOCA progress engine was not closed"):
        del engine
    doca.call("doca_pe_destroy", pointer)


def test_memory_that_a_buffer_lies_in_stays_open_and_can_be_closed_after(doca: Library, regions: Regions) -> None:
    device = open_device(doca, Ability.COPY)
    memory, inventory = Mmap.ours(device, regions(bytes(4096)).view, is_written=False), Inventory(doca, 1)
    buffer = inventory.by_data(memory, memory.address, 4096)
    assert buffer is not None
    assert (memory.buffers(), inventory.size, inventory.free, inventory.data_bytes(buffer)) == (1, 1, 0, 4096)
    assert inventory.by_addr(memory, memory.address, 1) is None
    for closing in (memory, device, inventory):
        with pytest.raises(DocaError, match=r"NOT_PERMITTED|IN_USE"):
            closing.close()
        assert not closing.is_closed
    inventory.release(buffer)
    assert (memory.buffers(), inventory.free) == (0, 1)
    device.close()
    assert memory.is_closed
    inventory.close()


def test_a_buffer_that_leaves_its_memory_is_refused(doca: Library, regions: Regions) -> None:
    device, inventory = open_device(doca, Ability.COPY), Inventory(doca, 1)
    memory = Mmap.ours(device, regions(bytes(4096)).view, is_written=False)
    for address, nbytes in ((memory.address - 1, 2), (memory.address + 4096, 1), (memory.address, 4097), (0, 1)):
        with pytest.raises(DocaError, match="INVALID_VALUE"):
            inventory.by_addr(memory, address, nbytes)
    inventory.close()
    device.close()


class Pair:
    """A context with a source and a target of ours."""

    def __init__(self, doca: Library, regions: Regions, ended: Callable[[int, bool], None]) -> None:
        self.device: Device = open_device(doca, Ability.COPY)
        self.engine = Engine(doca)
        self.source = Mmap.ours(self.device, regions(b"\x07" * 4096).view, is_written=False)
        self.region = regions(bytes(4096))
        self.target = Mmap.ours(self.device, self.region.view, is_written=True)
        self.dma = Dma(self.device, self.engine, ended)

    def submit(self, serial: int) -> None:
        source, target = (Place(each, each.address) for each in (self.source, self.target))
        assert self.dma.submit(serial, source, target, 4096)

    def close(self) -> None:
        self.device.close()
        self.engine.close()


def test_callbacks_live_as_long_as_their_context(doca: Library, regions: Regions) -> None:
    seen: list[tuple[int, bool]] = []
    pair = Pair(doca, regions, lambda serial, is_good: seen.append((serial, is_good)))
    gc.collect()
    pair.submit(41)
    assert pair.engine.in_flight() == 1
    assert pair.engine.drain()
    assert seen == [(41, True)]
    assert pair.dma.finish(41, True) is None
    assert pair.region.view[:4096] == b"\x07" * 4096
    assert pair.engine.in_flight() == 0
    pair.close()


def test_what_a_callback_raises_comes_out_of_progress(doca: Library, regions: Regions) -> None:
    def ended(serial: int, _is_good: bool) -> None:
        raise ValueError(f"task {serial}")

    pair = Pair(doca, regions, ended)
    pair.submit(1)
    with pytest.raises(ValueError, match="task 1"):
        pair.engine.drain()
    assert not pair.engine.drain(), "once, and no more"
    pair.close()


def test_what_several_callbacks_raise_is_all_kept(doca: Library) -> None:
    def shout(text: str) -> None:
        raise KeyError(text)

    engine = Engine(doca)
    guarded = engine.guarded(shout)
    guarded("one")
    guarded("two")
    with pytest.raises(BaseExceptionGroup) as raised:
        engine.progress()
    assert [fault.args for fault in raised.value.exceptions] == [("one",), ("two",)]
    engine.close()


def test_a_context_that_is_closed_with_tasks_under_way_waits_for_them(doca: Library, regions: Regions) -> None:
    pair = Pair(doca, regions, nothing)
    for serial in range(8):
        pair.submit(serial)
    pair.close()
    assert pair.dma.is_closed
    assert pair.region.view[:4096] == b"\x07" * 4096
