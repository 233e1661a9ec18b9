"""What migd does for each request, on an emulated GPU: who may, what is refused and how, what is left alone."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from offpath.bindings.errors import DriverMismatch, DriverMissing
from offpath.bindings.mig import WHOLE
from offpath.bindings.nvml import cut
from offpath.bindings.nvml.session import Nvml
from offpath.host_helper.migd import protocol

from ...support.gpu_machine import Machine
from .rig import HELPER, OTHER, Rig, cut_foreign, places

ROOT = 0


def code(reply: Any) -> str:
    assert isinstance(reply, protocol.Failed), reply
    assert reply.code in protocol.CODES
    return reply.code


# -- what is listed ---------------------------------------------------------------------------------------------------
def test_a_gpu_is_described_as_nvml_reports_it(rig: Rig) -> None:
    (gpu,) = rig.ask(protocol.List()).gpus
    assert (gpu.mode, gpu.mig, gpu.problem, gpu.minor) == ("mig", "on", "", 0)
    found = rig.ask(protocol.Describe(gpu=gpu.uuid))
    shown = {line.name: (line.starts, line.memory_slices, line.compute_slices) for line in found.profiles}
    assert shown["3g.20gb"] == ([0, 4], 4, 3)
    assert shown["1g.10gb"] == ([0, 2, 4, 6], 2, 1)
    assert found.instances == []


def test_a_created_instance_is_listed_with_its_uuid_and_only_its_owner_sees_the_handle(rig: Rig) -> None:
    made = rig.create("2g.10gb", 4)
    for uid, handle in ((HELPER, made.handle), (ROOT, made.handle), (OTHER, "")):
        (line,) = rig.ask(protocol.Describe(gpu=rig.gpu()), uid).instances
        assert (line.profile, line.start, line.uuid, line.owner) == ("2g.10gb", 4, made.uuid, "lease")
        assert (line.handle, line.lease_uid, line.unheld_ms) == (handle, HELPER, -1)


def test_a_gpu_that_is_not_configured_is_not_there(rig: Rig) -> None:
    gpu = rig.gpu()
    rig.start(gpus={"GPU-another": "mig"})
    assert rig.ask(protocol.List()).gpus == []
    assert code(rig.ask(protocol.Describe(gpu=gpu))) == "unknown_gpu"
    assert code(rig.ask(protocol.Describe(gpu="GPU-none"))) == "unknown_gpu"


# -- create and destroy -----------------------------------------------------------------------------------------------
def test_creating_twice_with_one_handle_creates_one_instance(rig: Rig, nvml: Nvml) -> None:
    handle = secrets.token_hex(16)
    assert rig.create("1g.5gb", 6, handle) == rig.create("1g.5gb", 6, handle)
    assert places(nvml, rig.gpu()) == [("1g.5gb", 6)]
    assert code(rig.create("1g.5gb", 5, handle)) == "handle_taken"


def test_a_generation_never_repeats_where_uuids_do(rig: Rig) -> None:
    seen = set()
    for _ in range(3):
        made = rig.create("7g.40gb", 0)
        seen.add((made.uuid, made.generation))
        assert isinstance(rig.ask(protocol.Destroy(handle=made.handle)), protocol.Done)
        rig.start()
    assert len({uuid for uuid, _ in seen}) == 1
    assert len({generation for _, generation in seen}) == 3


@pytest.mark.parametrize(
    ("profile", "start", "wanted"),
    [("3g.20gb", 1, "placement_taken"), ("1g.5gb", 63, "placement_taken"), ("2g.10gb", 0, "placement_taken"),
     ("9g.99gb", 0, "unknown_profile")],
)  # fmt: skip
def test_an_impossible_place_is_refused_and_leaves_nothing(
    rig: Rig, nvml: Nvml, profile: str, start: int, wanted: str
) -> None:
    rig.create("1g.5gb", 1)
    assert code(rig.create(profile, start)) == wanted
    assert places(nvml, rig.gpu()) == [("1g.5gb", 1)]
    assert len(rig.ledger.entries()) == 1


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceGetInfo", "nvmlGpuInstanceCreateComputeInstance",
        "nvmlComputeInstanceGetInfo_v2", "nvmlDeviceGetMigDeviceHandleByIndex",
    ],
)  # fmt: skip
def test_a_creation_that_fails_at_any_call_leaves_no_instance(
    rig: Rig, nvml: Nvml, machine: Machine, call: str
) -> None:
    """An instance without a compute instance is invisible to those who list MIG devices, and would stay behind."""
    gpu = rig.gpu()
    machine.set(faults=f"{call}:1=999")
    assert code(rig.create("3g.20gb", 4)) == "device"
    machine.set(faults="")
    assert places(nvml, gpu) == []
    assert rig.ledger.entries() == []
    assert isinstance(rig.create("3g.20gb", 4), protocol.Created)


def test_an_instance_in_use_is_tried_for_a_while_then_quarantined_until_it_is_free(
    rig: Rig, nvml: Nvml, machine: Machine
) -> None:
    made = rig.create("3g.20gb", 0)
    machine.set(faults="in_use=100000")
    reply = rig.ask(protocol.Destroy(handle=made.handle))
    assert code(reply) == "in_use"
    assert rig.slept[:4] == [0.01, 0.02, 0.04, 0.08]
    assert 5.0 <= sum(rig.slept) < 7.0
    (line,) = rig.ask(protocol.Describe(gpu=rig.gpu())).instances
    assert line.quarantined
    assert code(rig.create("3g.20gb", 0)) == "placement_taken", "its slices stay taken"
    rig.start()
    assert code(rig.ask(protocol.Destroy(handle=made.handle))) == "in_use", "also for the next migd"
    machine.set(faults="")
    assert isinstance(rig.ask(protocol.Destroy(handle=made.handle)), protocol.Done)
    assert places(nvml, rig.gpu()) == []


def test_an_instance_that_is_released_meanwhile_is_destroyed(rig: Rig, nvml: Nvml, machine: Machine) -> None:
    made = rig.create("3g.20gb", 0)
    machine.set(faults="in_use=3")
    assert isinstance(rig.ask(protocol.Destroy(handle=made.handle)), protocol.Done)
    assert rig.slept == [0.01, 0.02, 0.04]
    assert places(nvml, rig.gpu()) == []


# -- who may ----------------------------------------------------------------------------------------------------------
def test_another_uid_can_neither_destroy_hold_nor_get_nodes_of_an_instance(rig: Rig, nvml: Nvml) -> None:
    made = rig.create("1g.5gb", 0)
    assert code(rig.ask(protocol.Destroy(handle=made.handle), OTHER)) == "denied"
    assert code(rig.ask(protocol.Nodes(handle=made.handle, uid=OTHER), OTHER)) == "denied"
    assert rig.ask(protocol.Hold(handles=[made.handle]), OTHER).handles == []
    assert code(rig.create("1g.5gb", 0, made.handle, OTHER)) == "handle_taken"
    assert places(nvml, rig.gpu()) == [("1g.5gb", 0)]


def test_a_forged_handle_opens_nothing(rig: Rig) -> None:
    forged = secrets.token_hex(16)
    assert code(rig.ask(protocol.Destroy(handle=forged))) == "unknown_handle"
    assert code(rig.ask(protocol.Nodes(handle=forged, uid=HELPER))) == "unknown_handle"
    assert rig.ask(protocol.Hold(handles=[forged])).handles == []


def test_layouts_are_for_operators(rig: Rig, nvml: Nvml) -> None:
    gpu = rig.gpu()
    lay = protocol.Lay(handle=secrets.token_hex(16), gpu=gpu, profile="3g.20gb", start=0)
    assert code(rig.ask(lay)) == "denied"
    made = rig.ask(lay, ROOT)
    remove = protocol.Remove(gpu=gpu, gpu_instance=made.gpu_instance, profile="3g.20gb", start=0)
    assert code(rig.ask(remove)) == "denied"
    assert code(rig.ask(protocol.Destroy(handle=made.handle), ROOT)) == "denied"
    assert isinstance(rig.ask(remove, ROOT), protocol.Done)
    assert places(nvml, gpu) == []


def test_an_unprivileged_migd_says_which_right_it_lacks(rig: Rig, machine: Machine) -> None:
    gpu = rig.gpu()
    machine.set(uid="1000")
    reply = rig.ask(protocol.Create(handle=secrets.token_hex(16), gpu=gpu, profile="1g.5gb", start=0))
    assert code(reply) == "no_right"
    assert "mig/config" in reply.detail


# -- the states of a GPU ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("mig", "mode", "wanted"),
    [("off", "mig", "mig_off"), ("pending-on", "mig", "mode_pending"), ("pending-off", "mig", "mode_pending"),
     ("off", "static", "mig_off"), ("on", "whole", "mig_on"), ("pending-on", "whole", "mode_pending")],
)  # fmt: skip
def test_a_mig_mode_that_does_not_fit_is_reported_and_nothing_is_cut(
    rig: Rig, machine: Machine, mig: str, mode: str, wanted: str
) -> None:
    machine.set(mig=mig)
    rig.start(gpus={"all": mode})
    (gpu,) = rig.ask(protocol.List()).gpus
    assert gpu.problem == wanted
    assert rig.ask(protocol.Describe(gpu=gpu.uuid)).profiles == []
    assert code(rig.create(WHOLE if mode == "whole" else "1g.5gb", 0)) == wanted


@pytest.mark.parametrize(
    ("faults", "wanted"),
    [("nvmlInitWithFlags:1=9", "driver_missing"), ("nvmlInitWithFlags:1=18", "driver_mismatch"),
     ("nvmlInitWithFlags:1=999", "device"), ("nvmlDeviceGetCount:1=15", "gpu_gone")],
)  # fmt: skip
def test_a_driver_that_is_not_there_is_named_and_the_next_request_finds_it_again(
    rig: Rig, machine: Machine, faults: str, wanted: str
) -> None:
    machine.set(faults=faults)
    assert code(rig.ask(protocol.List())) == wanted
    machine.set(faults="")
    assert len(rig.ask(protocol.List()).gpus) == 1


@pytest.mark.parametrize(("number", "kind"), [(9, DriverMissing), (18, DriverMismatch)])
def test_the_session_says_what_is_wrong_with_the_driver(machine: Machine, number: int, kind: type[Exception]) -> None:
    machine.set(faults=f"nvmlInitWithFlags:1={number}")
    with pytest.raises(kind, match=f"NVML code {number}"):
        Nvml()


def test_a_lost_gpu_is_reported_and_its_leases_stay_in_the_ledger(rig: Rig, machine: Machine) -> None:
    made = rig.create("1g.5gb", 0)
    gpu = rig.gpu()
    machine.set(faults="lost=1")
    assert code(rig.ask(protocol.Destroy(handle=made.handle))) == "gpu_gone"
    machine.set(faults="")
    assert code(rig.ask(protocol.Describe(gpu=gpu))) == "gpu_gone"
    assert rig.ask(protocol.List()).gpus == []
    assert [entry.handle for entry in rig.ledger.entries()] == [made.handle]


# -- foreign instances ------------------------------------------------------------------------------------------------
def test_a_foreign_instance_is_listed_and_never_touched(rig: Rig, nvml: Nvml) -> None:
    gpu = rig.gpu()
    number = cut_foreign(nvml, gpu, "1g.5gb", 2)
    bare = cut_foreign(nvml, gpu, "1g.5gb", 3, compute=False)
    mine = rig.create("3g.20gb", 4)
    lines = {line.gpu_instance: line.owner for line in rig.ask(protocol.Describe(gpu=gpu)).instances}
    assert lines == {number: "foreign", bare: "foreign", mine.gpu_instance: "lease"}
    assert code(rig.create("1g.5gb", 2)) == "placement_taken"
    remove = protocol.Remove(gpu=gpu, gpu_instance=number, profile="1g.5gb", start=2)
    assert code(rig.ask(remove, ROOT)) == "foreign"
    rig.start().settle()
    assert places(nvml, gpu) == [("1g.5gb", 2), ("1g.5gb", 3), ("3g.20gb", 4)]


def test_an_operator_may_order_a_foreign_instance_away_but_nothing_else_at_its_number(rig: Rig, nvml: Nvml) -> None:
    gpu = rig.gpu()
    number = cut_foreign(nvml, gpu, "1g.5gb", 2)
    wrong = protocol.Remove(gpu=gpu, gpu_instance=number, profile="2g.10gb", start=2, foreign=True)
    assert isinstance(rig.ask(wrong, ROOT), protocol.Done)
    assert places(nvml, gpu) == [("1g.5gb", 2)]
    right = protocol.Remove(gpu=gpu, gpu_instance=number, profile="1g.5gb", start=2, foreign=True)
    assert isinstance(rig.ask(right, ROOT), protocol.Done)
    assert places(nvml, gpu) == []
    lease = rig.create("1g.5gb", 2)
    taken = protocol.Remove(gpu=gpu, gpu_instance=lease.gpu_instance, profile="1g.5gb", start=2, foreign=True)
    assert code(rig.ask(taken, ROOT)) == "denied", "a lease is not ordered away"


def test_a_lease_that_somebody_destroyed_is_forgotten(rig: Rig, nvml: Nvml) -> None:
    made = rig.create("1g.5gb", 0)
    foreign = rig.gpu()
    cut.destroy_compute_instances(nvml, foreign, made.gpu_instance)
    cut.destroy_gpu_instance(nvml, foreign, made.gpu_instance)
    assert rig.ask(protocol.Describe(gpu=foreign)).instances == []
    assert rig.ledger.entries() == []


# -- static and whole -------------------------------------------------------------------------------------------------
def test_static_instances_are_lent_one_at_a_time_and_stay(rig: Rig, nvml: Nvml) -> None:
    gpu = rig.gpu()
    cut_foreign(nvml, gpu, "3g.20gb", 0)
    cut_foreign(nvml, gpu, "2g.10gb", 4)
    rig.start(gpus={gpu: "static"})
    shown = {line.name: (line.starts, line.max_instances) for line in rig.ask(protocol.Describe(gpu=gpu)).profiles}
    assert shown == {"3g.20gb": ([0], 1), "2g.10gb": ([4], 1)}
    made = rig.create("3g.20gb", 0)
    assert made.uuid.startswith("MIG-")
    assert code(rig.create("3g.20gb", 0)) == "placement_taken"
    assert code(rig.create("3g.20gb", 4)) == "placement_taken", "nothing is cut"
    assert isinstance(rig.ask(protocol.Destroy(handle=made.handle)), protocol.Done)
    assert places(nvml, gpu) == [("3g.20gb", 0), ("2g.10gb", 4)]
    assert isinstance(rig.create("3g.20gb", 0), protocol.Created)


def test_a_static_instance_that_is_destroyed_under_its_lease_is_forgotten(rig: Rig, nvml: Nvml) -> None:
    gpu = rig.gpu()
    number = cut_foreign(nvml, gpu, "3g.20gb", 0)
    rig.start(gpus={gpu: "static"})
    rig.create("3g.20gb", 0)
    cut.destroy_compute_instances(nvml, gpu, number)
    cut.destroy_gpu_instance(nvml, gpu, number)
    rig.ask(protocol.Describe(gpu=gpu))
    assert rig.ledger.entries() == []


def test_a_whole_gpu_is_lent_to_one_and_nothing_is_cut(rig: Rig, machine: Machine) -> None:
    machine.set(mig="off")
    rig.start(gpus={"all": "whole"})
    gpu = rig.gpu()
    (profile,) = rig.ask(protocol.Describe(gpu=gpu)).profiles
    assert (profile.name, profile.starts, profile.compute_slices) == (WHOLE, [0], 1)
    made = rig.create(WHOLE, 0)
    assert (made.uuid, made.gpu_instance, made.memory_mib) == (gpu, -1, profile.memory_mib)
    assert code(rig.create(WHOLE, 0, uid=OTHER)) == "placement_taken"
    assert code(rig.create("1g.5gb", 0)) == "unknown_profile"
    (line,) = rig.ask(protocol.Describe(gpu=gpu)).instances
    assert (line.uuid, line.owner) == (gpu, "lease")
    assert rig.ask(protocol.Nodes(handle=made.handle, uid=HELPER)).paths == []
    rig.ask(protocol.Destroy(handle=made.handle))
    assert isinstance(rig.create(WHOLE, 0, uid=OTHER), protocol.Created)


def test_an_instance_of_a_layout_can_be_leased_and_stays(rig: Rig, nvml: Nvml) -> None:
    gpu = rig.gpu()
    laid = rig.ask(protocol.Lay(handle=secrets.token_hex(16), gpu=gpu, profile="2g.10gb", start=0), ROOT)
    made = rig.create("2g.10gb", 0)
    assert (made.uuid, made.gpu_instance) == (laid.uuid, laid.gpu_instance)
    remove = protocol.Remove(gpu=gpu, gpu_instance=laid.gpu_instance, profile="2g.10gb", start=0)
    assert code(rig.ask(remove, ROOT)) == "denied"
    rig.ask(protocol.Destroy(handle=made.handle))
    assert places(nvml, gpu) == [("2g.10gb", 0)]
    assert [line.owner for line in rig.ask(protocol.Describe(gpu=gpu)).instances] == ["layout"]


def test_an_error_of_an_instance_is_its_leases_and_one_of_the_gpu_is_nobodys(rig: Rig, machine: Machine) -> None:
    made = rig.create("2g.10gb", 0)
    owner = rig.service.owner(rig.gpu(), made.gpu_instance)
    assert owner is not None
    assert owner.handle == made.handle
    assert rig.service.owner(rig.gpu(), made.gpu_instance + 1) is None
    assert rig.service.owner(rig.gpu(), None) is None


# -- holders ----------------------------------------------------------------------------------------------------------
def test_an_unheld_lease_is_destroyed_after_the_configured_time_and_not_before(rig: Rig, nvml: Nvml) -> None:
    rig.start(hold_ms=1000)
    kept, dropped = rig.create("1g.5gb", 0, connection=1), rig.create("1g.5gb", 1, connection=2)
    rig.service.holders.leave(2)
    rig.now_ns += 999_000_000
    rig.service.expire()
    assert len(places(nvml, rig.gpu())) == 2
    rig.now_ns += 2_000_000
    rig.service.expire()
    assert places(nvml, rig.gpu()) == [("1g.5gb", 0)]
    assert code(rig.ask(protocol.Destroy(handle=dropped.handle))) == "unknown_handle"
    assert rig.service.holders.unheld_ms(dropped.handle) == -1, "nothing of it is kept"
    assert rig.ledger.get(kept.handle) is not None


def test_an_expired_lease_that_is_in_use_is_tried_again_later(rig: Rig, nvml: Nvml, machine: Machine) -> None:
    rig.start(hold_ms=1000, destroy_wait_ms=0)
    made = rig.create("1g.5gb", 0)
    rig.service.holders.leave(1)
    machine.set(faults="in_use=1")
    rig.now_ns += 1_000_000_000
    rig.service.expire()
    assert rig.ledger.entries()[0].state == "quarantined"
    rig.service.expire()
    assert len(places(nvml, rig.gpu())) == 1, "its time begins anew"
    rig.now_ns += 1_000_000_000
    rig.service.expire()
    assert places(nvml, rig.gpu()) == []
    assert rig.ledger.get(made.handle) is None


def test_a_lease_is_held_by_one_connection_and_taken_over_after_its_end(rig: Rig) -> None:
    made = rig.create("1g.5gb", 0, connection=1)
    assert code(rig.ask(protocol.Hold(handles=[made.handle]), connection=2)) == "handle_held"
    rig.service.holders.leave(1)
    assert rig.service.has_unheld()
    assert rig.ask(protocol.Hold(handles=[made.handle]), connection=2).handles == [made.handle]
    assert not rig.service.has_unheld()


def test_after_a_restart_leases_are_unheld_until_their_helper_holds_them_again(rig: Rig, nvml: Nvml) -> None:
    made = rig.create("1g.5gb", 0)
    rig.start(hold_ms=1000).settle()
    assert rig.service.has_unheld()
    assert rig.ask(protocol.Hold(handles=[made.handle])).handles == [made.handle]
    rig.now_ns += 10**10
    rig.service.expire()
    assert places(nvml, rig.gpu()) == [("1g.5gb", 0)]


def test_nothing_is_kept_of_a_lease_that_its_holder_gave_back(rig: Rig) -> None:
    made = rig.create("1g.5gb", 0)
    rig.ask(protocol.Destroy(handle=made.handle))
    rig.service.holders.leave(1)
    assert rig.service.holders.unheld_ms(made.handle) == -1


def test_a_caller_that_ended_during_its_request_holds_nothing(rig: Rig) -> None:
    request = protocol.Create(handle=secrets.token_hex(16), gpu=rig.gpu(), profile="1g.5gb", start=0)
    rig.service.handle(request, rig.caller(alive=False))
    assert rig.service.holders.unheld_ms(request.handle) == 0


def test_another_boot_makes_the_ledger_worthless_and_what_is_there_foreign(rig: Rig, nvml: Nvml) -> None:
    made = rig.create("1g.5gb", 0)
    rig.start(boot="boot-2").settle()
    (line,) = rig.ask(protocol.Describe(gpu=rig.gpu())).instances
    assert line.owner == "foreign"
    assert code(rig.ask(protocol.Destroy(handle=made.handle))) == "unknown_handle"
