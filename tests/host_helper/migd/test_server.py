"""Clients that mean harm or are careless, at migd's socket: each gets a typed refusal, and nobody else notices."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offpath.bindings.errors import InstanceInUse, PlacementTaken, ProtocolError, ResourceClosed
from offpath.bindings.nvml.session import Nvml
from offpath.bindings.wire.control import decode, encode
from offpath.host_helper.migd import protocol
from offpath.host_helper.migd.client import MigdClient, XidStream, parse
from offpath.host_helper.migd.errors import MigdRefused, MigdUnreachable
from offpath.host_helper.migd.server import MAX_CONNECTIONS_OF_UID

from ...support.gpu_machine import Machine
from ...support.processes import until
from .rig import HELPER, OTHER, Rig, Served, places

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a while")


def reply_to(sock: socket.socket, body: bytes) -> Any:
    """The reply; None: migd hung up without one."""
    sock.send(body)
    received = sock.recv(protocol.MAX_REPLY_BYTES)
    return decode(protocol.REPLIES, received) if received else None


def is_hung_up(sock: socket.socket) -> bool:
    try:
        return sock.recv(16) == b""
    except ConnectionResetError:
        return True


def works(served: Served) -> bool:
    with MigdClient(served.path) as client:
        return len(client.gpus().gpus) == 1


def as_user(uid: int, body: Callable[[], str]) -> str:
    """What ``body`` returns in a child process of another user."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if uid != os.geteuid():
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            os.write(writer, body().encode())
        except BaseException as fault:
            os.write(writer, f"raised {fault!r}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with open(reader, encoding="utf-8") as file:
        return file.read()


# -- messages ---------------------------------------------------------------------------------------------------------
BAD = [
    b"{", b"[]", b"null", b"\xff\xfe", b'{"kind":"list","kind":"list"}', b'{"kind":"reset"}', b'{"kind":"list","x":1}',
    b'{"kind":"create","handle":"short","gpu":"GPU-1","profile":"1g.5gb","start":0}',
    b'{"kind":"create","handle":"' + b"0" * 32 + b'","gpu":"GPU-1","profile":"1g.5gb","start":-1}',
    b'{"kind":"create","handle":"' + b"0" * 32 + b'","gpu":"GPU-1","profile":"1g.5gb","start":"0"}',
    b'{"kind":"create","handle":"' + b"0" * 32 + b'","gpu":"../../x","profile":"1g.5gb","start":0}',
    b'{"kind":"nodes","handle":"' + b"0" * 32 + b'","uid":4294967295}',
    b'{"kind":"hold","handles":[' + b",".join([b'"' + b"0" * 32 + b'"'] * (protocol.MAX_HANDLES + 1)) + b"]}",
    b"[" * 4000, b" " * (protocol.MAX_REQUEST_BYTES + 1),
    b'{"kind":"list"}' + b" " * protocol.MAX_REQUEST_BYTES,
]  # fmt: skip


@pytest.mark.parametrize("body", BAD, ids=range(len(BAD)))
def test_what_is_no_message_is_refused_and_hung_up_on(served: Served, body: bytes) -> None:
    with served.connect() as sock:
        reply = reply_to(sock, body)
        assert reply.code == "message"
        assert is_hung_up(sock)
    assert works(served)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    start=st.sampled_from([encode(m) for m in (
        protocol.List(), protocol.Describe(gpu="GPU-1"), protocol.Hold(handles=[]), protocol.Destroy(handle="0" * 32),
        protocol.Create(handle="0" * 32, gpu="GPU-1", profile="1g.5gb", start=0),
        protocol.Remove(gpu="GPU-1", gpu_instance=1, profile="1g.5gb", start=0, foreign=True))]),
    at=st.integers(0, 200), new=st.binary(max_size=8),
)  # fmt: skip
def test_a_changed_message_gets_a_reply_and_changes_nothing(served: Served, start: bytes, at: int, new: bytes) -> None:
    body = start[:at] + new + start[at + len(new) :]
    with served.connect() as sock:
        reply = reply_to(sock, body) if body else None
        if body:
            assert isinstance(reply, (protocol.Failed, protocol.Gpus, protocol.Held)), reply


def test_replies_stay_within_their_limit_when_everything_is_as_large_as_it_may_be() -> None:
    long = protocol.failed("device", "\x00" * 5000, tuple(range(100)))
    assert len(encode(long)) <= protocol.MAX_REPLY_BYTES
    assert protocol.failed("no such code", "").code == "device"
    most = protocol.MAX_GPUS - 1
    linked = whole_gpu([{"uuid": "u" * 94 + f"{n:02}", "links": 64} for n in range(most)])
    assert len(encode(linked)) <= protocol.MAX_REPLY_BYTES
    assert decode(protocol.REPLIES, encode(linked)) == linked


def whole_gpu(links: list[dict[str, Any]]) -> protocol.Gpu:
    """The description of a GPU with these NVLinks, each text as long as it may be."""
    line = protocol.GpuLine(
        index=0xFFFF, uuid="u" * 96, name="n" * 128, pci="p" * 128, pci_device_id=1, minor=0, mode="whole", mig="off",
        memory_mib=1,
    )  # fmt: skip
    return protocol.Gpu(gpu=line, profiles=[], instances=[], links=[protocol.LinkLine(**link) for link in links])


@pytest.mark.parametrize(
    "links",
    [[{"uuid": "GPU-1", "links": 0}], [{"uuid": "GPU-1", "links": 65}], [{"uuid": "GPU-1", "links": "4"}],
     [{"uuid": "GPU 1", "links": 4}], [{"uuid": "", "links": 4}], [{"uuid": "u" * 97, "links": 4}], [{"links": 4}],
     [{"uuid": "GPU-1", "links": 4, "nodes": 1}], [{"uuid": "GPU-1", "links": 4}] * protocol.MAX_GPUS, {"GPU-1": 4}],
    ids=repr,
)  # fmt: skip
def test_nvlinks_beyond_their_bounds_are_no_message_of_migd(links: Any) -> None:
    body = orjson.loads(encode(whole_gpu([{"uuid": "GPU-1", "links": 4}])))
    parse(orjson.dumps(body))
    with pytest.raises(MigdUnreachable):
        parse(orjson.dumps({**body, "links": links}))


def test_a_second_request_waits_for_the_first(served: Served) -> None:
    with served.connect() as sock:
        for _ in range(20):
            sock.send(encode(protocol.List()))
        for _ in range(20):
            assert isinstance(decode(protocol.REPLIES, sock.recv(protocol.MAX_REPLY_BYTES)), protocol.Gpus)


def test_a_client_that_never_reads_is_hung_up_on_and_delays_nobody(served: Served) -> None:
    """Its own queue fills, then its next reply cannot be sent."""

    def is_cut_off() -> bool:
        try:
            sock.send(encode(protocol.List()))
        except BlockingIOError:
            return False  # migd is still at its earlier requests
        except (BrokenPipeError, ConnectionResetError):
            return True
        return False

    with served.connect() as sock:
        sock.setblocking(False)
        until(is_cut_off)
    assert works(served)


def test_connections_of_a_user_are_limited_and_free_again_when_they_end(served: Served) -> None:
    held = [served.connect() for _ in range(MAX_CONNECTIONS_OF_UID)]
    for sock in held:
        reply_to(sock, encode(protocol.List()))
    with served.connect() as sock:
        assert decode(protocol.REPLIES, sock.recv(protocol.MAX_REPLY_BYTES)).code == "too_many"
        assert is_hung_up(sock)
    for sock in held:
        sock.close()
    assert until(lambda: works_or_not(served))


def works_or_not(served: Served) -> bool:
    try:
        return works(served)
    except (MigdRefused, MigdUnreachable):
        return False


# -- users ------------------------------------------------------------------------------------------------------------
@needs_root
def test_a_user_that_is_not_listed_is_denied_before_it_says_anything(served: Served) -> None:
    def body() -> str:
        with served.connect() as sock:
            first = orjson.loads(sock.recv(4096))
            return f"{first['code']} {sock.recv(16)!r}"

    os.chmod(served.rig.folder, 0o755)
    open_to(served)
    assert as_user(65534, body) == "denied b''"


def open_to(served: Served) -> None:
    """Other users reach the socket: pytest's folders are closed."""
    for parent in [served.rig.folder, *served.rig.folder.parents]:
        if parent.stat().st_uid == os.geteuid() and str(parent).startswith("/tmp/"):
            os.chmod(parent, parent.stat().st_mode | 0o011)


@needs_root
def test_two_helpers_do_not_reach_each_others_instances(served: Served, nvml: Nvml) -> None:
    """By the kernel's record of who connected: nothing in a message says who sends it."""
    open_to(served)
    handle = secrets.token_hex(16)
    gpu = served.rig.gpu()

    def ask(*requests: protocol.Message) -> Callable[[], str]:
        def body() -> str:
            with served.connect() as sock:
                found = [reply_to(sock, encode(each)) for each in requests]
            return " ".join(getattr(each, "code", each.kind) for each in found)

        return body

    create = protocol.Create(handle=handle, gpu=gpu, profile="1g.5gb", start=0)
    assert as_user(HELPER, ask(create)) == "created"
    foreign = ask(protocol.Destroy(handle=handle), create, protocol.Nodes(handle=handle, uid=OTHER))
    assert as_user(OTHER, foreign) == "denied handle_taken denied"
    lay = protocol.Lay(handle=secrets.token_hex(16), gpu=gpu, profile="1g.5gb", start=1)
    assert as_user(HELPER, ask(lay)) == "denied"
    assert places(nvml, gpu) == [("1g.5gb", 0)]
    assert as_user(HELPER, ask(protocol.Destroy(handle=handle))) == "done"


# -- clients ----------------------------------------------------------------------------------------------------------
def test_a_client_creates_lists_and_destroys_and_may_destroy_twice(served: Served, nvml: Nvml) -> None:
    client = served.client()
    (gpu,) = client.gpus().gpus
    made = client.create(gpu.uuid, "3g.20gb", 4)
    assert client.held == {made.handle}
    with pytest.raises(PlacementTaken):
        client.create(gpu.uuid, "3g.20gb", 4)
    assert [line.handle for line in client.describe(gpu.uuid).instances] == [made.handle]
    client.destroy(made.handle)
    client.destroy(made.handle)
    assert places(nvml, gpu.uuid) == []


def test_an_instance_in_use_is_a_typed_error_at_the_client(served: Served, machine: Machine) -> None:
    client = served.client()
    made = client.create(served.rig.gpu(), "1g.5gb", 0)
    machine.set(faults="in_use=100000")
    with pytest.raises(InstanceInUse):
        client.destroy(made.handle)
    assert client.held == {made.handle}, "it is quarantined, and still the client's"
    machine.set(faults="")
    client.destroy(made.handle)


def test_a_lease_is_unheld_once_its_client_hangs_up_and_held_again_by_its_next_call(served: Served) -> None:
    client = served.client()
    made = client.create(served.rig.gpu(), "1g.5gb", 0)
    assert served.rig.service.holders.unheld_ms(made.handle) == -1
    client.close()
    until(lambda: served.rig.service.holders.unheld_ms(made.handle) >= 0)
    client.gpus()
    assert served.rig.service.holders.unheld_ms(made.handle) == -1


def test_leases_of_a_client_that_ended_expire(machine: Machine, rig: Rig, nvml: Nvml) -> None:
    rig.start(hold_ms=0)
    served = Served(rig)
    try:
        ended, living = served.client(), served.client()
        gpu = rig.gpu()
        ended.create(gpu, "3g.20gb", 0)
        living.create(gpu, "1g.5gb", 4)
        ended.close()
        until(lambda: places(nvml, gpu) == [("1g.5gb", 4)])
        assert living.held
    finally:
        served.close()


def test_a_forked_child_may_not_use_the_connection(served: Served) -> None:
    client = served.client()
    client.gpus()

    def body() -> str:
        try:
            client.gpus()
        except ResourceClosed:
            return "closed"
        return "used"

    assert as_user(os.geteuid(), body) == "closed"
    assert len(client.gpus().gpus) == 1


def test_a_second_client_cannot_take_what_a_living_one_holds(served: Served) -> None:
    made = served.client().create(served.rig.gpu(), "1g.5gb", 0)
    with pytest.raises(MigdRefused, match="handle_held"):
        served.client().hold([made.handle])


def test_clients_of_two_gpus_and_of_one_do_not_disturb_each_other(machine: Machine, served: Served, nvml: Nvml) -> None:
    """Eight clients cut and destroy at once; each has its place."""
    gpu = served.rig.gpu()
    failed: list[BaseException] = []

    def work(start: int) -> None:
        try:
            with MigdClient(served.path) as client:
                for _ in range(5):
                    client.destroy(client.create(gpu, "1g.5gb", start).handle)
        except BaseException as fault:
            failed.append(fault)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert places(nvml, gpu) == []


def test_an_event_names_the_lease_to_its_owner(served: Served) -> None:
    made = served.client().create(served.rig.gpu(), "1g.5gb", 0)
    stream = XidStream(served.path)
    event = protocol.Xid(gpu=served.rig.gpu(), xid=31, gpu_instance=made.gpu_instance, compute_instance=0,
                         handle=made.handle)  # fmt: skip
    assert stream.poll() is None
    served.server.publish(event, os.geteuid())
    assert until(stream.poll) == event
    stream.close()


def test_without_migd_the_client_says_so(tmp_path: Any) -> None:
    with pytest.raises(MigdUnreachable, match="no migd answers"):
        MigdClient(str(tmp_path / "none.sock")).gpus()


def test_a_reply_that_is_no_message_is_an_error_of_the_carrier() -> None:
    for body in (b"{", b'{"kind":"gpus"}', b"\x00"):
        with pytest.raises(MigdUnreachable):
            parse(body)
    with pytest.raises(ProtocolError):
        decode(protocol.REPLIES, b"{}")
