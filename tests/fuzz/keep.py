"""Extends the kept corpus: `./scripts/run python -m tests.fuzz.keep INPUTS SEED [PARSER…]`, in the root.

Writes one line per case: hand-made ones first, then one for each signature the search reached that no kept case has.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson

from offpath.bindings.channel.session import Session
from offpath.bindings.ina import frames as ina
from offpath.bindings.ina import packets
from offpath.bindings.mig import gpu_model
from offpath.bindings.wire import (
    cluster,
    control,
    fields,
    ina_admin,
    inc_admin,
    negotiating,
    regions,
    signatures,
    work_admin,
)
from offpath.bindings.wire.admin import Fault
from offpath.bindings.wire.codes import Reason, Status
from offpath.bindings.wire.frames import frame
from offpath.bindings.wire.header import ABSENT, STRINGS, Tensor, pack_answer, pack_request, pack_tensors
from offpath.bindings.wire.host import pack_launch, pack_proceed, pack_result
from offpath.dpu_daemon.switch.inc import messages as messages_of
from offpath.dpu_daemon.switch.inc import packets as key_value
from offpath.host_helper.ina import rank_file
from offpath.sched.ina.patterns import AllReduce, Pattern
from offpath.sched.ina.protocol.records import EpochRecord, Grant, RankState, Step, Wants, epoch_to_data, state_to_data

from . import gateway_requests
from .engine import CORPUS, Case, corpus, judge, search
from .targets import TICKET, targets

_SOME = pack_tensors([Tensor(10, (2, 3), 0, 24), Tensor(1, (), 24, 1)])
_FULL = pack_tensors([Tensor(code, (1,), 8 * code, size) for code, size in ((1, 1), (3, 2), (5, 4), (7, 8)) * 20])
_ODD = pack_tensors([Tensor(STRINGS, (2,), 3, 20), Tensor(ABSENT, (), 0, 0), Tensor(STRINGS, (1,), 64, 6)])
MOST = 60
PACKETS = [
    packets.Packet(packets.PacketKind.ATTACH, 1, 0, 2, 2, payload=b"n1"),
    packets.Packet(packets.PacketKind.ATTACH, 1, 0, 32, 0, payload=b"n" * 255),
    packets.Packet(packets.PacketKind.READY, 1, 0, 2),
    packets.Packet(packets.PacketKind.REFUSED, 1, packets.Refusal.TAKEN, 2),
    packets.Packet(packets.PacketKind.DETACHED, 1, 0, 2, 1),
    packets.Packet(packets.PacketKind.DATA, 1, 7, 2, 3, 15, 0xFFFFFFFF, bytes(8)),
    packets.Packet(packets.PacketKind.RESULT, (1 << 64) - 1, (1 << 63) - 1, 32, 1 << 31, 6, 1, b"sum!"),
    packets.Packet(packets.PacketKind.FLUSH, 1, 7, 2, hash=5),
]
KEY_VALUE = [
    *(key_value.Packet(kind, 7, b"k" * 16, b"value", 3) for kind in key_value.Kind),
    *(key_value.Packet(key_value.Kind.REPLY, 7, bytes(16), status=status) for status in key_value.Status),
    key_value.Packet(key_value.Kind.WRITE, (1 << 64) - 1, b"k" * 16, bytes(128), flags=key_value.Flag.LEASE),
    key_value.Packet(key_value.Kind.CHAIN, 1, b"k" * 16, b"v", key_value.MOST_VERSION, origin=("127.0.0.1", 9)),
]
INA = [
    ina.Attach(1, 4, "job", 7, 1 << 32, "token"),
    ina.Attach(65_535, 65_536, "ä" * 255, (1 << 63) - 1, (1 << 63) - 1, "t" * 255),
    ina.Attached(1),
    ina.AttachRefused(1, ina.Reason.UNKNOWN),
    *(ina.Operation(1, 7, 1 << 32, 32, dtype) for dtype in ina.DTYPES),
    ina.Data(1, 7, ina.CHUNK_BYTES, b"sum"),
    ina.Refused(7),
    ina.Result(7, 0, b"sum"),
    ina.Delivered(1, 7),
    ina.Abort(1 << 32, ina.Reason.LOST),
]
"""A frame of each kind, in order of kinds, and some at their limits."""
_STEP = Step(300, (1, 2), (3, 4), (5, 6))
_GRANT = Grant("tree", ("unix:///s", "tcp://[::1]:1"), "token")
PAGES = [
    (state_to_data(RankState("job", 7, 1, 2, 1 << 32, 1 << 32, 1, 9)), rank_file.STATE),
    (rank_file.pattern_to_data(Pattern("job", (AllReduce(1_000_000_007, 400), AllReduce(2, 1)), 3)), rank_file.PATTERN),
    (epoch_to_data(EpochRecord("job", 7, 1, 2, _GRANT, Wants.ALWAYS, False, _STEP)), rank_file.EPOCH),
]
"""A record of each area of a rank's page."""


def hand_made(name: str) -> Iterator[Case]:
    """The plain cases of each parser, of every kind there is."""
    for data, *numbers in _plain(name):
        yield Case(data, tuple(numbers), "hand-made")


def _plain(name: str) -> Iterator[tuple[Any, ...]]:
    if name == "parse_request":
        for tensors in (b"", _SOME, _FULL, _ODD):
            for flags in (0, 1, 2, 3, 4, 32, 64):
                yield pack_request(request_id=7, kernel_id=3, payload_bytes=4096, tensors=tensors, flags=flags), 4096
        yield pack_request(request_id=(1 << 64) - 1, kernel_id=0, payload_bytes=0), 0
        for flags in (0, 8, 16, 24):
            yield pack_request(request_id=7, kernel_id=3, payload_bytes=0, flags=flags, sequence_id=5), 0
        yield pack_request(request_id=7, kernel_id=3, payload_bytes=0, flags=8), 0
        yield b"", 0
    elif name == "parse_answer":
        for tensors in (b"", _SOME, _FULL, _ODD):
            yield pack_answer(request_id=7, status=1, result_bytes=4096, tensors=tensors), 4096
            yield pack_answer(request_id=7, status=1, result_bytes=4096, tensors=tensors, flags=1, number=5), 4096
        for flags, number in ((1, 0), (2, 5), (0, 5)):
            yield pack_answer(request_id=7, status=1, flags=flags, number=number), 0
        yield pack_answer(request_id=7, status=2, flags=1, number=5), 0
        for status in Status:
            yield pack_answer(request_id=1, status=status, reason=Reason.WORKER_LOST, stages=(1, 2, 3, 4, 5, 6)), 0
    elif name == "unpack_tensors":
        yield from (
            (b"", 0), (_SOME, 25), (_SOME, 24), (_FULL, 4096), (_FULL + _SOME, 4096), (_SOME[:-1], 25), (_ODD, 70),
            (_ODD, 69),
        )  # fmt: skip
    elif name == "parse_launch":
        yield from ((pack_launch(1, 2, 3, 14, 0, 0, 4096, tensors),) for tensors in (b"", _SOME, _FULL))
        yield from ((pack_launch(1, 2, 3, 14, 8, 0, 4096, tensors, 5, 6),) for tensors in (b"", _SOME, _FULL))
        yield from ((pack_launch(1, 2, 3, 14, 32, 0, 4096, _ODD, rows=rows),) for rows in (b"\1\0", bytes(512)))
        yield (pack_launch(1, 2, 3, 14, 32, 0, 4096, _ODD, rows=bytes(514)),)
    elif name == "parse_result":
        yield (pack_result(1, 2, 5, 10, 20, 0, True, b"", b"", 0),)
        for status in range(9):
            yield (pack_result(1, 2, status, 10, 20, 4, True, b"", b"text", 3),)
        yield (pack_result(1, 2, 0, 10, 20, 1 << 40, False, _FULL, b""),)
        yield (pack_result(1, 2, 0, 10, 20, 3072, True, _SOME, bytes(3072)),)
    elif name == "parse_proceed":
        yield from ((pack_proceed(1, 2, number, is_stop),) for number in (0, 7) for is_stop in (False, True))
        yield from ((pack_proceed(1, 2, 7, True)[:-1],), (b"\6\2" + pack_proceed(1, 2, 7, True)[2:],))
    elif name == "parse_region":
        yield from (
            (regions.pack_copy(1, 4096, at, nbytes),) for at, nbytes in ((0, 1), (64, regions.MOST_REGION_BYTES))
        )
        yield from ((regions.pack_region(2, 1 << 20, is_writable),) for is_writable in (False, True))
        yield from ((regions.pack_drop((1 << 64) - 1),), (regions.pack_drop(1) + b"\0",), (b"",), (b"\1" + bytes(39),))
        yield from ((regions.pack_copy(1, 2, 3, 0),), (regions.pack_region(1, 1 << 63, False),))
    elif name == "session_frame":
        ours = Session(b"nonce123")
        yield from ((ours.frame(kind, b"x" if kind == 3 else b""),) for kind in range(8))
        yield from ((ours.frame(3, bytes(n)),) for n in (0, 4080, 4081, 5000))
        yield from ((ours.frame(5, b"x"),), (b"",), (bytes(15),), (b"\3\2" + bytes(14),), (b"\3\1\1" + bytes(14),))
    elif name == "comch_pieces":
        yield from ((b"", 0), (b"\2", 1), (b"\0a\1b\2\0c", 2, 2, 1, 2), (b"\3a", 2), (b"\0", 1), (b"\2\2", 2))
        long = b"\1" + bytes(4079)
        yield from ((long + b"\0" + bytes(17), 4080, 18), (long + b"\0" + bytes(18), 4080, 19), (long * 2, 4080, 4080))
    elif name == "frame_reader":
        yield from ((b"",), (frame(b"x"), 1, 1, 1, 1, 1), (frame(b"x") * 20, 3), (frame(bytes(4000)) + b"\1",))
        yield from ((struct.pack("<I", n),) for n in (0, 1, 65_536, 65_537, 1 << 31, (1 << 32) - 1))
    elif name == "ina_packets":
        yield from ((packets.pack(each),) for each in PACKETS)
        yield b"".join(packets.pack(each) for each in PACKETS), 1, 20, 3, 100
        yield from ((b"",), (packets.pack(PACKETS[5])[:-1],), (struct.pack("<I", 31),), (struct.pack("<I", 1 << 20),))
        yield (packets.pack(packets.Packet(packets.PacketKind.READY, 1, 0, 2, hash=1)),)
    elif name == "inc_packet":
        yield from ((key_value.pack(each),) for each in KEY_VALUE)
        yield from ((b"",), (key_value.pack(KEY_VALUE[0])[:-1],), (key_value.pack(KEY_VALUE[0]) + b"x",))
    elif name == "inc_controlled":
        token = bytes(range(key_value.TOKEN_BYTES))
        yield from ((key_value.control(token, 7, body),) for body in (b"", b"{}", bytes(key_value.MOST_BODY)))
        yield from ((b"",), (key_value.answer(token, 7, b"{}"),))
    elif name == "inc_address":
        yield from ((text,) for text in (b"127.0.0.1:21000", b"255.255.255.255:65535", b"1.2.3.4:1", b"", b"1:1"))
        yield from ((text,) for text in (b"127.0.0.256:1", b"127.0.0.1:+1", b"127.0.0.1 x:1", b"127.0.0.01:1"))
    elif name == "ina_frames":
        yield from ((ina.pack(each),) for each in INA)
        yield b"".join(ina.pack(each) for each in INA), 1, 20, 3, 100
        yield from ((b"",), (ina.pack(INA[5])[:-1],), (struct.pack("<I", 15),), (struct.pack("<I", 1 << 20),))
    elif name == "rank_file":
        for area, (data, place) in enumerate(PAGES):
            record = rank_file.pack(2, data, place)
            yield from ((each, area) for each in (record, record[:-1], record[:15], b"", record + b"more", bytes(16)))
            yield from ((rank_file.pack(2, other, place), area) for other, _ in PAGES if other is not data)
            for body in (b"{", b"[]", b"\xff"):
                yield rank_file.MARK.pack(2, len(body), zlib.crc32(body)) + body, area
    elif name.startswith("control_"):
        yield from ((control.encode(message),) for message in messages(name))
        yield from (
            (body,)
            for body in (
                b"",
                b"{}",
                b'{"version":99}',
                b"[]",
                b"null",
                b"[" * 2000,
                b'{"kind":' * 600,
                b"\xff",
                b'"\\ud800"',
            )
        )
    elif name == "ticket":
        yield from ((TICKET.encode(), late) for late in (-1, 0, 1))
        yield from ((data, 0) for data in (b"", b"T", TICKET.encode() + b"\n", TICKET.lower().encode(), b"\xff" * 300))
    elif name == "ticket_reply":
        yield from ((b"taken" + struct.pack("<IQQ", 4, 8192, 4096), count) for count in (0, 2, 3))
        yield from ((data, 3) for data in (b"", b"refused", b"taken", b"taken" + bytes(19), b"taken" + bytes(21)))
    elif name.startswith("gateway"):
        yield from gateway_requests.plain(name)
    elif name == "config":
        yield from ((orjson.dumps(raw),) for raw in configurations())
    elif name == "config_toml":
        yield from ((text,) for text in toml())


def messages(name: str) -> list[Any]:
    """One valid message of each kind of a direction, and some at their limits."""
    token, most = "t" * 43, (1 << 63) - 1
    kernel = negotiating.KernelInfo(name="echo", kernel_id=1, demand=14, is_emulated=True)
    known = gpu_model("A100-40GB")
    profiles = [
        control.ProfileInfo(
            name=p.name, compute_slices=p.compute_slices, memory_slices=p.memory_slices, memory_bytes=p.memory_bytes,
            starts=list(p.starts), max_instances=p.max_instances,
        )
        for p in known.profiles
    ]  # fmt: skip
    fabric = negotiating.FabricOffer(carrier="loopback", address="/run/offpath/fabric.sock")
    end = negotiating.QueuePairEnd(
        qp_num=(1 << 24) - 1, psn=1, gid="::ffff:10.99.0.1", mtu=5, doorbells=64, memory=most, rkey=(1 << 32) - 1
    )
    tensors = [signatures.TensorSpec(name=f"{'t' * 60}-{n}", dtype="float32", shape=[-1, 3]) for n in range(8)]
    signature = signatures.KernelSignature(
        name="echo", model="echo", model_version=2, labels=["stable"], inputs=tensors, outputs=tensors[:1]
    )
    models = [control.ModelDemand(model=f"{'m' * 60}-{n}", demand=14) for n in range(fields.MAX_MODELS)]
    every: dict[str, list[Any]] = {
        "control_to_daemon": [
            negotiating.Hello(tenant="ada", token=token, slots=16, payload_bytes=1 << 20, result_bytes=4096),
            negotiating.Hello(slots=1, payload_bytes=0, result_bytes=0),
            negotiating.Hello(tenant="n" * 64, token="t" * 256, slots=1024, payload_bytes=most, result_bytes=most),
            negotiating.Redeem(ticket=token, end=end),
            negotiating.Describe(name="echo"),
            control.Goodbye(),
        ],
        "control_to_requester": [
            negotiating.Welcome(
                session=1, tenant="ada", lineage="l" * 16, slots=16, payload_bytes=1, result_bytes=1,
                resume_token=token, resume_ttl_s=60, ticket=token, ticket_ttl_s=5, fabric=fabric, kernels=[kernel] * 3,
            ),
            negotiating.Redeemed(end=end),
            negotiating.Refused(code="denied", detail="no tenant", retry_after_ms=1000),
            negotiating.Kernels(kernels=[kernel]),
            negotiating.Kernels(kernels=[]),
            negotiating.Described(name="echo", signature=None),
            negotiating.Described(name="echo", signature=signature),
            negotiating.Described(
                name="echo", signature=signature, sequence_idle_ms=10_000,
                batches=negotiating.KernelBatches(max_batch=64, preferred_batch_sizes=[8, 16]),
            ),
            control.Closing(code="slot_in_use", detail="3"),
        ],
        "control_host_to_daemon": [
            control.HelperHello(name="h", pid=1, kernels=[control.KernelOffer(name="echo", demand=14)], gpu_count=1),
            control.GpuOffer(
                uuid="GPU-1", model="A100-40GB", is_emulated=True, compute_slices=7, memory_slices=8, profiles=profiles
            ),
            control.GpuOffer(
                uuid="GPU-0", model="NVIDIA-H100", is_emulated=False, compute_slices=1, memory_slices=1, profiles=[],
                linked=[control.GpuLink(uuid=f"GPU-{n}", links=n) for n in range(1, fields.MAX_GPUS)],
            ),
            control.KernelNeeds(name="echo", memory_bytes=6 << 30, models=models[:2]),
            control.KernelNeeds(name="e" * 64, memory_bytes=1 << 50, models=models),
            control.KernelNeeds(name="echo", max_batch=64, max_queue_delay_us=2_000, preferred_batch_sizes=[8, 16]),
            control.KernelNeeds(name="echo", sequences=True),
            signature,
            signature.model_copy(update={"sequences": True}),
            signature.model_copy(update={"inputs": [], "outputs": [], "labels": []}),
            control.KernelsReloaded(revision=1, kernels=[control.KernelOffer(name="echo", demand=14)]),
            control.MoreKernels(kernels=[control.KernelOffer(name="more", demand=14)]),
            control.KernelsReloaded(
                revision=(1 << 32) - 1, needs_count=32,
                kernels=[control.KernelOffer(name=f"k{n}", demand=100) for n in range(fields.MAX_LISTED)],
            ),
            control.InstanceHeld(lease=1, generation=1, lanes=[0, 63], renewals=[0, (1 << 32) - 1]),
            control.WorkerDied(lease=1, lane=0, generation=1, renewal=3),
            control.WorkerHello(lease=1, lane=0, pid=1, token=token),
            control.InstanceFailed(lease=1, generation=1, detail="no"),
            control.LaneLoading(lease=1, lane=63, generation=1),
            control.LaneReady(
                lease=1, lane=0, generation=1, export={"offset": 0, "nbytes": 8192, "kind": "memfd"},
                landing_bytes=4096, result_bytes=4096,
            ),
            control.LaneScrubbed(lease=1, lane=0, generation=1, scrubbed_bytes=8192),
            control.InstanceClosed(lease=1, generation=1, scrubbed_bytes=0),
            control.GpuLost(uuid="GPU-1", detail="Xid 79 (GPU has fallen off the bus)"),
            control.InaStates(part='{"states":[],"patterns":[]}', is_all=True),
            control.InaStates(part='"' * fields.MAX_PART_CHARACTERS, is_last=False),
        ],
        "control_daemon_to_host": [
            control.HostWelcome(generation=1, kernel_ids={"echo": 1, "sum": 2}),
            control.HostKernels(kernel_ids={"echo": 1, "sum": 2}),
            control.OpenInstance(
                lease=1, generation=1, tenant="ada", gpu="GPU-1", profile="1g.5gb", start=0, lanes=2, landing_bytes=1,
                result_bytes=1, scrub_first=True, token=token,
            ),
            control.InviteLane(lease=1, lane=0, generation=1, invitation={"qp_num": 17, "gid": "::"}),
            control.RenewWorker(lease=1, lane=63, generation=1, renewal=1, token=token),
            control.HostKernels(kernel_ids={"echo": 1}, revision=2),
            control.ScrubLane(lease=1, lane=0),
            control.SequenceEnded(lease=1, lane=0, sequence=(1 << 64) - 1),
            control.SequencesKept(lease=1, lane=0, first=0, last=(1 << 64) - 1, kept=[1, 7]),
            control.CloseInstance(lease=1, generation=1, scrub=False),
            control.InaEpoch(part='{"job":"a"}'),
            control.InaEpoch(part="x" * fields.MAX_PART_CHARACTERS, is_last=False),
            control.InaAsk(),
            control.Closing(code="refused", detail=""),
        ],
        "control_agent_to_controller": [
            cluster.AgentHello(host="h1"),
            cluster.AgentReport(term=0, states=[]),
            cluster.AgentReport(
                term=(1 << 31) - 1, is_whole=True, states=[PAGES[0][0]] * 3,
                patterns=[{"job": "job", "incarnation": 7, "pattern": PAGES[1][0]}],
            ),
        ],
        "control_controller_to_agent": [
            cluster.AskAll(term=1), cluster.NewEpoch(epoch=PAGES[2][0]), cluster.Farewell(code="deposed", detail=""),
        ],
        "control_operator_to_controller": [
            ina_admin.StatusRequest(),
            ina_admin.SubmitRequest(job="job", on=["h1", "h2"]),
            ina_admin.SubmitRequest(job="j" * 63, hosts=65_536, ranks_per_host=1024),
            ina_admin.SubmitRequest(job="job", on=["h1", "h2"], switches=["s1", "s2", "s0"]),
            ina_admin.JobsRequest(after="a", limit=1),
            *(kind(job="job") for kind in (ina_admin.JobRequest, ina_admin.ExplainRequest, ina_admin.CancelRequest)),
            ina_admin.GroupsRequest(), ina_admin.HoldsRequest(), ina_admin.TreesRequest(after=1),
            ina_admin.ModeRequest(mode="shared", link_bytes_per_s=1e9), ina_admin.ModeRequest(),
        ],
        "control_user_to_manager": [
            work_admin.StatusRequest(), work_admin.ListRequest(after=1, limit=2, is_ended=True),
            work_admin.SubmitRequest(job="job", gpus=8, model="vgg16", argv=["python3", "train.py"]),
            work_admin.SubmitRequest(
                job="j" * 63, gpus=1 << 30, model="own", data_bytes=1 << 40, value=2.5, argv=["a"] * 8,
                environment={"A": "b", "C": ""}, directory="/tmp", output="/tmp/out",
            ),
            work_admin.WhatIfRequest(job="whatif", gpus=1, model="vgg16"),
            *(kind(job="job") for kind in (work_admin.ExplainRequest, work_admin.CancelRequest)),
        ],
    }  # fmt: skip
    return every[name] if name in every else inc_messages(name)


def inc_messages(name: str) -> list[Any]:
    """The same for requests for servers and switches."""
    composite = inc_admin.CompositeBody(
        name="cache", template="cache", instances=3, among=["netcache", "server"], service="cache",
        demand={"netcache": {"sram_kib": 8192, "stages": 4}}, servers_percent={"netcache": 50}, environment={"A": "b"},
    )  # fmt: skip
    start = messages_of.StartTask(
        identity="shop.1a.7", service="netcache", demand=[5, 4, 6000], shared=[0, 8, 0], features=["p4-14"],
        data_plane="cache", token="0f" * 16,
    )  # fmt: skip
    entry = messages_of.Entry(key="6b" * 16, version=(1 << 63) - 1, value="00" * 128)
    short = messages_of.Entry(key="6b" * 16, version=1, value="")  # so many stay below the mutation's longest text
    every: dict[str, list[Any]] = {
        "control_tenant_to_manager": [
            inc_admin.SubmitRequest(name="shop", tenant="web", composite=[composite]),
            inc_admin.SubmitRequest(
                name="s" * 63, tenant="web", priority=0, gang=True, deadline_s=1.5,
                composite=[inc_admin.CompositeBody(name=f"c{n}", argv=["sleep", "1"]) for n in range(64)],
                connection=[inc_admin.ConnectionBody(source="c0", target="c1", bidirectional=True)],
                tie=[inc_admin.TieBody(composite="c0", request="other", to="d", same_flavor=True)],
            ),
            inc_admin.ListRequest(after=1, limit=2, is_ended=True), inc_admin.ShowRequest(name="shop", after=128),
            inc_admin.CancelRequest(name="shop"), inc_admin.TemplatesRequest(), work_admin.StatusRequest(),
        ],
        "control_manager_to_inc_switch": [
            start, messages_of.StopTask(identity="shop.1a.7"), messages_of.StatusRequest(),
        ],
        "control_inc_switch_to_manager": [
            messages_of.Started(address="127.0.0.1:21000"), messages_of.Stopped(),
            Fault(code="switch_full", detail="1 lack sram_kib"),
            messages_of.Status(
                life="a1", tasks=["a"] * 9, services=["netcache"], free=[1, 2, 3], counters={"reads": 1}
            ),
        ],
        "control_manager_to_service": [
            messages_of.Configure(epoch=1, stores=["127.0.0.1:21000", ""]),
            messages_of.Configure(epoch=(1 << 63) - 1, chain=["127.0.0.1:21000"] * 9, is_open=False),
            messages_of.Pull(after="6b" * 16), messages_of.Pull(), messages_of.Load(entries=[entry] * 3),
        ],
        "control_service_to_manager": [
            messages_of.Done(epoch=1, keys=2, counters={"reads": 1}), messages_of.Refused(detail="only a chain"),
            messages_of.Entries(entries=[short] * messages_of.MOST_ENTRIES, is_last=False),
            messages_of.Entries(entries=[entry], is_last=True),
        ],
    }  # fmt: skip
    return every[name]


def configurations() -> list[dict[str, Any]]:
    tenant = {"name": "ada", "token_file": "ada.token", "uids": [1], "weight": 2, "max_sessions": 4, "max_slots": 8}
    return [
        {"tenant": [{"name": "ada"}]},
        {
            "tenant": [
                {**tenant, "max_bytes": 1 << 20, "max_jobs": 8, "max_share": 14, "max_demand": 14},
                {"name": "bob"},
            ],
            "lease": [{"tenant": "bob", "gpu": 0, "profile": "1g.5gb", "start": 3}],
            "leasing": {"lanes": 2, "landing_bytes": 4096, "result_bytes": 4096, "keep_warm_ms": 0, "grow_after_ms": 1},
            "tls": {"listen": "127.0.0.1:4433", "ca_file": "ca", "cert_file": "c", "key_file": "k"},
            "durability": {"journal_mib": 0, "resume_ttl_s": 0, "adopt_ms": 0},
            "limits": {"kernel_ms": 0, "open_ms": 1, "scrub_ms": 1, "helper_ms": 100, "drain_ms": 0},
            "operation": {"metrics_listen": "", "log": "json"},
            "host_uids": [7],
            "max_jobs": 99,
        },
        {"tenant": [{"name": f"t{n}"} for n in range(40)]},
        {"tenant": [{"name": "ada"}, {"name": "ada"}]},
        {},
    ]


def toml() -> list[bytes]:
    return [
        b'[[tenant]]\nname = "ada"\n',
        b'max_jobs = 0x10\nhost_uids = [\n 1,\n]\n[leasing]\nlanes = 3\n[[tenant]]\nname = """ada"""\nuids = [1, 2]\n',
        b'[[tenant]]\nname = "ada"\n[[tenant]]\nname = \'bob\' # two\n[tls]\nlisten = "127.0.0.1:1"\nca_file = "a"\n',
        b'tenant = [{name = "ada", weight = 2}]\n',
        b"",
        b"\xff\xfe",
        b"a = " + b"[" * 3000,
        b"a = " + b"1" * 4400,
        b"a = 1979-05-27T07:32:00+99:99",
        b"a = inf\nb = nan\nc = 1e400",
        b"a.a = 1\na = 2",
    ]


def main() -> None:
    inputs, seed, *names = sys.argv[1:]
    with targets() as known:
        for name in names or known:
            target = known[name]
            path = CORPUS / f"{name}.jsonl"
            kept = corpus(name) if path.exists() else []
            has = {(case.data, case.numbers) for case in kept}
            plain = [case for case in hand_made(name) if (case.data, case.numbers) not in has]
            start = [*kept, *(replace(case, gives=judge(target, case.data, case.numbers)[0]) for case in plain)]
            report = search(target, int(inputs), int(seed), start)
            have = {judge(target, case.data, case.numbers)[1] for case in start}
            lines = list(start)
            fresh = [case for signature, case in report.found.items() if signature not in have]
            small = sorted((case for case in fresh if len(case.data) <= 4500), key=lambda case: len(case.data))
            seen: Counter[str] = Counter()
            turns = []
            for case in small:  # each outcome in its turn, or one with many signatures would crowd the others out
                turns.append((seen[case.gives], len(case.data), case))
                seen[case.gives] += 1
            lines += [case for *_, case in sorted(turns, key=lambda turn: turn[:2])][: max(0, MOST - len(lines))]
            path.write_text("".join(case.line() + "\n" for case in lines), "ascii")
            print(report.line(name), f"-> {len(lines)} kept", flush=True)


if __name__ == "__main__":
    main()
