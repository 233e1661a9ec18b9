"""A session comes back also when its welcome lists as much as the limits allow: 256 kernels and 1 024 requests."""

from __future__ import annotations

import os
import signal
from typing import Any

from offpath.bindings.wire import admin, control, fields, negotiating
from offpath.bindings.wire.frames import MAX_FRAME_BYTES, frame
from offpath.bindings.wire.host import MAX_MESSAGE_BYTES
from offpath.cli.admin_client import AdminClient
from offpath.dpu_daemon.hosts.welcome import host_welcome_messages
from offpath.dpu_daemon.ingress.admission import welcome_messages

from ..support.cluster import Cluster, pids_of
from ..support.clusters import Make, seconds
from ..support.fakehost import FakeHost
from ..support.peers import Peer, RawSession, hello
from ..support.processes import until

MOST = (1 << 64) - 1
MOST_UNANSWERED = 1024
KERNELS = [
    negotiating.KernelInfo(name=f"{'k' * 60}{n:04}", kernel_id=(1 << 32) - 1, demand=100, is_emulated=False)
    for n in range(fields.MAX_KERNELS)
]  # fmt: skip
RESUMED = [negotiating.Resumed(request_id=MOST - n, state="retry_safe") for n in range(MOST_UNANSWERED)]


def welcome(**changes: Any) -> negotiating.Welcome:
    """The longest there may be: every text is of its largest size in JSON, every number has its most digits."""
    fields: dict[str, Any] = {
        "session": MOST, "tenant": "t" * 64, "lineage": "\x01" * 64, "slots": 1024, "payload_bytes": MOST,
        "result_bytes": MOST, "resume_token": "r" * 256, "resume_ttl_s": 3600, "ticket": "t" * 256,
        "ticket_ttl_s": 60, "fabric": negotiating.FabricOffer(carrier="loopback", address="\x01" * 256),
        "kernels": KERNELS, "resumed": RESUMED,
    }  # fmt: skip
    return negotiating.Welcome(**{**fields, **changes})


def test_the_longest_welcome_is_cut_into_messages_that_fit_a_frame_and_lose_nothing() -> None:
    assert len(control.encode(welcome())) > MAX_FRAME_BYTES, "else there is nothing to cut"
    bodies = [frame(control.encode(message))[4:] for message in welcome_messages(welcome())]
    first, second = [control.decode(negotiating.TO_REQUESTER, body) for body in bodies]
    assert isinstance(first, negotiating.Welcome)
    assert isinstance(second, negotiating.Kernels)
    assert (first.resumed, first.kernels, second.kernels) == (RESUMED, [], KERNELS)


def test_a_welcome_that_fits_is_one_message() -> None:
    for changes in ({"resumed": []}, {"kernels": []}, {"resumed": RESUMED[:8]}):
        whole = welcome(**changes)
        assert list(welcome_messages(whole)) == [whole]
        assert frame(control.encode(whole))


def test_no_limit_allows_more_than_was_reckoned_with() -> None:
    most = {name: field.metadata for name, field in negotiating.Welcome.model_fields.items()}
    assert [mark.max_length for mark in most["kernels"]] == [len(KERNELS)]
    assert [mark.max_length for mark in most["resumed"]] == [len(RESUMED)]
    (unanswered,) = negotiating.Resume.model_fields["unanswered"].metadata
    assert unanswered.max_length == len(RESUMED)


def host_welcome(**changes: Any) -> control.HostWelcome:
    """The longest there may be."""
    longest: dict[str, Any] = {
        "generation": MOST, "linger_ms": (1 << 32) - 1,
        "kernel_ids": {f"{'k' * 60}{n:04}": (1 << 32) - 1 for n in range(fields.MAX_OFFERED)},
        "keep": [(1 << 32) - 1 - n for n in range(fields.MAX_HELD)],
    }  # fmt: skip
    return control.HostWelcome(**{**longest, **changes})


def test_the_longest_welcome_of_a_helper_is_cut_into_messages_that_fit_and_lose_nothing() -> None:
    whole = host_welcome()
    assert len(control.encode(whole)) > MAX_MESSAGE_BYTES, "else there is nothing to cut"
    bodies = [control.encode(message) for message in host_welcome_messages(whole)]
    assert all(len(body) <= MAX_MESSAGE_BYTES for body in bodies)
    first, *some = [control.decode(control.DAEMON_TO_HOST, body) for body in bodies]
    assert isinstance(first, control.HostWelcome)
    assert [each.has_more for each in some] == [True] * 7 + [False]  # type: ignore[union-attr]
    numbers = {name: number for each in some for name, number in each.kernel_ids.items()}  # type: ignore[union-attr]
    assert first.model_copy(update={"kernel_ids": numbers}) == whole
    few = dict(list(whole.kernel_ids.items())[:40])
    for changes in ({"keep": [], "kernel_ids": few}, {"kernel_ids": {}}):
        assert list(host_welcome_messages(host_welcome(**changes))) == [host_welcome(**changes)]


def test_no_limit_of_the_host_channel_allows_more_than_was_reckoned_with() -> None:
    (kernels,) = [m for m in control.HelperHello.model_fields["kernels"].metadata if hasattr(m, "max_length")]
    (held,) = [m for m in control.HelperHello.model_fields["held_count"].metadata if hasattr(m, "le")]
    (keep,) = control.HostWelcome.model_fields["keep"].metadata
    (more,) = [m for m in control.HelperHello.model_fields["more_kernels"].metadata if hasattr(m, "le")]
    assert (kernels.max_length, more.le + 1) == (fields.MAX_LISTED, len(host_welcome().kernel_ids))
    assert held.le == keep.max_length == len(host_welcome().keep)


def test_a_session_with_all_that_the_limits_allow_comes_back(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {"max_slots": MOST_UNANSWERED}}, durability={"resume_ttl_s": 60})
    names = [kernel.name for kernel in KERNELS]
    for at in range(0, len(names), 32):
        with FakeHost(cluster) as fake:
            fake.join(kernels=[control.KernelOffer(name=name, demand=100) for name in names[at : at + 32]])
    listed = [MOST - n for n in range(MOST_UNANSWERED)]
    with RawSession(cluster, "ada", slots=MOST_UNANSWERED) as session:
        until(lambda: len(session.welcome.kernels) == fields.MAX_KERNELS)
        was = session.welcome
        resume = {
            "session": was.session, "lineage": was.lineage, "token": was.resume_token, "unanswered": listed
        }  # fmt: skip
        with Peer(cluster.address) as peer:
            peer.send_message(**hello("ada", resume=resume))
            again = peer.hear()
            assert isinstance(again, negotiating.Welcome), again
            assert [(one.request_id, one.state) for one in again.resumed] == [(n, "retry_safe") for n in listed]
            behind = peer.hear()
            assert isinstance(behind, negotiating.Kernels), behind
            assert {kernel.name for kernel in behind.kernels} == set(names)


def unanswered(cluster: Cluster) -> int:
    with AdminClient(str(cluster.run_folder)) as client:
        return client.query(admin.StatusRequest(), admin.Status).unanswered


def test_a_requester_with_as_many_unanswered_requests_comes_back_after_a_kill(make_cluster: Make) -> None:
    """The library's own way: it learns the kernels from the message behind its welcome."""
    tenant = {"max_slots": MOST_UNANSWERED, "max_jobs": MOST_UNANSWERED}
    durability = {"resume_ttl_s": 60, "adopt_ms": 500}
    cluster = make_cluster({"ada": tenant}, keep={"starts": 0}, durability=durability)
    names = [kernel.name for kernel in KERNELS]
    with FakeHost(cluster) as fake:
        for at in range(0, len(names), 32):
            fake.close()
            fake = FakeHost(cluster)
            fake.join(kernels=[control.KernelOffer(name=name, demand=14) for name in names[at : at + 32]])
        with fake, cluster.connect("ada", slots=MOST_UNANSWERED, payload_bytes=64, result_bytes=64) as requester:
            before = requester.welcome
            requester._slots._next_id = MOST - MOST_UNANSWERED  # ids only have to rise: these have the most digits
            pending = [requester.begin(names[-1], seconds(n)) for n in range(MOST_UNANSWERED)]
            until(lambda: unanswered(cluster) == MOST_UNANSWERED)
            os.kill(pids_of(cluster.daemon)[0], signal.SIGKILL)
            assert cluster.daemon.hear()["lineage"] == cluster.lineage

            def is_back() -> bool:
                requester.poll(0.1)
                return requester.welcome is not before

            until(is_back)
            assert requester.welcome.kernels == [], "they did not fit"
            assert {one.state for one in requester.welcome.resumed} == {"running"}
            assert requester.kernel_id(names[0]) == 1
            assert not any(one.done for one in pending)
