"""The operator's commands against a running daemon, each as its own process: one document on stdout, exit codes."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

from offpath.bindings.errors import NegotiationRefused
from offpath.bindings.wire import admin
from offpath.bindings.wire.codes import Reason, Status
from offpath.cli.admin_client import AdminClient, Refused
from offpath.cli.commands.lease_plan import proposal
from offpath.cli.commands.request_submit import _values
from offpath.cli.commands.top import Seen, rates_of
from offpath.host_helper import RequestFailed

from ..support.cluster import TIMEOUT, Cluster
from ..support.clusters import NARROW, Make, seconds
from ..support.command import Done, offpath
from ..support.processes import until

"""A kernel whose request was cancelled sleeps on in its lane: tests that do so have a tenant of their own."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster({"ada": {}, **dict.fromkeys(("bob", "cyd", "dee", "eve", "fay"), NARROW)})
    try:
        made.start_helper()
        yield made
        made.close()
    finally:
        made.kill()


def query(cluster: Cluster, *words: str) -> Done:
    return offpath(*words, "--runtime-dir", str(cluster.run_folder))


def submit(cluster: Cluster, *words: str, tenant: str = "ada") -> Done:
    token = str(cluster.folder / f"{tenant}.token")
    return query(cluster, "request", "submit", *words, "--tenant", tenant, "--token-file", token)


def unanswered(cluster: Cluster) -> int:
    with AdminClient(str(cluster.run_folder)) as client:
        return client.query(admin.StatusRequest(), admin.Status).unanswered


def test_a_request_from_the_command_line_is_answered_and_can_be_shown_afterwards(cluster: Cluster) -> None:
    done = submit(cluster, "echo", "--text", "digits", "--json")
    assert done.code == 0, done.err
    assert (done.document["status"], done.document["arrays"][0]["values"]) == ("COMPLETED", list(b"digits"))
    assert f"job {done.document['job']} ({done.document['session']}/1)" in done.err
    shown = query(cluster, "request", "show", str(done.document["job"]), "--json").document
    assert (shown["job"]["state"], shown["job"]["kernel"], shown["job"]["is_ended"]) == ("completed", "echo", True)
    assert shown["stages_ms"] == list(done.document["stages_ms"].values())
    text = query(cluster, "request", "show", f"{done.document['session']}/1")
    assert "COMPLETED" in text.out
    told = query(cluster, "request", "explain", str(done.document["job"]), "--json").document
    assert (told["holds"], told["where"].startswith("COMPLETED after")) == ([], True)


def test_arrays_come_from_files_and_go_to_files(cluster: Cluster) -> None:
    source, target = cluster.folder / "in.npy", cluster.folder / "out.npy"
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(source, array)
    done = submit(cluster, "echo", "--array", str(source), "--output", str(target))
    assert (done.code, done.out.startswith("float32[3, 4]: ")) == (0, True)
    assert np.array_equal(np.load(target), array)
    raw = submit(cluster, "sum", "--bytes", str(source), "--json")
    assert raw.document["arrays"][0]["values"] == [float(sum(source.read_bytes()))]


def test_an_array_of_many_rows_without_values_is_not_shown() -> None:
    assert _values(np.empty((2, 0))) == [[], []]
    assert _values(np.empty((1025, 0))) is None
    assert _values(np.empty(((1 << 32) - 1, 0))) is None


def test_a_request_that_fails_says_why_in_the_document_and_by_its_exit_code(cluster: Cluster) -> None:
    done = submit(cluster, "fail", "--text", "no luck", "--json")
    assert (done.code, done.document["status"], done.document["reason"]) == (1, "FAILED", "KERNEL_RAISED")
    assert "no luck" in done.err


def test_a_kernel_that_raises_leaves_its_traceback_with_the_helper_and_its_text_with_the_operator(
    cluster: Cluster,
) -> None:
    """Also where the session has no room for the text; what a terminal would act on is in neither."""
    text = b"no such digit\x1b[2J\nERROR forged"
    with cluster.connect("ada", result_bytes=8) as ada:
        with pytest.raises(RequestFailed):
            ada.submit("fail", [np.frombuffer(text, np.uint8)], timeout=TIMEOUT)
        job = f"{ada.welcome.session}/1"
    told = query(cluster, "request", "explain", job)
    assert "kernel: its kernel raised an exception (lease " in told.out
    assert "): RuntimeError: no such digit [2J ERROR forged\n" in told.out
    assert cluster.helper is not None
    log = cluster.helper.errors
    said = log[log.index("kernel fail raised in job ") :]
    assert "  | Traceback (most recent call last):" in said
    assert "in fail\n  |     raise RuntimeError(message.tobytes().decode())\n" in said
    assert "  | RuntimeError: no such digit [2J\n  | ERROR forged\n" in said
    assert "worker.py" not in said, "frames of ours are of no use to the kernel's author"
    assert "\x1b" not in told.out + log


def test_an_ended_request_is_explained_with_its_stages(cluster: Cluster) -> None:
    with cluster.connect("ada") as ada:
        slept = ada.submit("sleep", seconds(0.02), timeout=TIMEOUT).stages
        name = f"{ada.welcome.session}/1"
    told = query(cluster, "request", "explain", name, "--json").document
    assert told["stages_ms"] == [ns / 1e6 for ns in slept]
    assert told["stages_ms"][3] >= 20
    text = query(cluster, "request", "explain", name).out.splitlines()
    assert [line.split()[0] for line in text[3:9]] == ["queued", "copy", "launch", "kernel", "back", "total"]
    assert text[6].split()[1] == f"{told['stages_ms'][3]:.3f}"


def test_an_operator_cancels_a_request_of_somebody(cluster: Cluster) -> None:
    with cluster.connect("bob") as bob:
        pending = bob.begin("sleep", seconds(20))
        until(lambda: unanswered(cluster) == 1)
        done = query(cluster, "request", "cancel", f"{bob.welcome.session}/1", "--json")
        assert (done.code, done.document["job"]["state"]) == (0, "cancelled")
        with pytest.raises(RequestFailed) as failed:
            pending.result(TIMEOUT)
        assert (failed.value.status, failed.value.reason) == (Status.CANCELLED, Reason.CANCELLED_BY_OPERATOR)
        again = query(cluster, "request", "cancel", f"{bob.welcome.session}/1")
        assert again.code == 0, "it is cancelled, which was the wish"
        uid = os.getuid()
        assert done.document["job"]["cancelled_by_uid"] == uid
        assert f"CANCELLED (cancelled_by_operator, uid {uid})" in again.out
        told = query(cluster, "request", "explain", f"{bob.welcome.session}/1")
        assert f"operator: an operator (uid {uid}) cancelled it" in told.out
        own = bob.begin("sleep", seconds(20))
        until(lambda: unanswered(cluster) == 1)
        own.cancel()
        until(lambda: unanswered(cluster) == 0)
        shown = query(cluster, "request", "show", f"{bob.welcome.session}/2", "--json").document["job"]
        assert (shown["reason"], shown["cancelled_by_uid"]) == ("cancelled_by_requester", None)


def test_a_list_by_state_finds_requests_whose_answers_were_taken(cluster: Cluster) -> None:
    with cluster.connect("ada") as ada:
        for _ in range(3):
            ada.submit("echo", seconds(1), timeout=TIMEOUT)
        with pytest.raises(RequestFailed):
            ada.submit("fail", seconds(1), timeout=TIMEOUT)
        session = str(ada.welcome.session)

        def listed(*words: str) -> list[tuple[int, str, str]]:
            found = query(cluster, "request", "list", "--session", session, "--json", *words).document
            return [(job["request_id"], job["state"], job["reason"]) for job in found]

        ends = [(1, "completed", "none"), (2, "completed", "none"), (3, "completed", "none")]
        assert listed("--state", "completed") == ends
        assert listed("--state", "failed") == [(4, "failed", "kernel_raised")]
        assert listed("--state", "ended") == [*ends, (4, "failed", "kernel_raised")]
        assert listed("--state", "Completed", "--limit", "2") == ends[1:], "of many, the newest"
        assert listed("--state", "completed", "--tenant", "bob") == []
        assert listed("--state", "queued") == []
        plain = query(cluster, "request", "list", "--state", "failed", "--session", session).out
        assert "kernel_raised" in plain


def test_leases_and_the_picture_of_top_show_who_holds_what(cluster: Cluster) -> None:
    with cluster.connect("cyd") as bob:
        pending = bob.begin("sleep", seconds(20))
        until(lambda: any(line.running for line in leases(cluster)))
        listed = query(cluster, "lease", "list", "--json").document
        mine = next(each for each in listed if each["tenant"] == "cyd")
        assert (mine["profile"], mine["state"], mine["running_share"]) == ("1g.5gb", "warm", 14)
        assert "1g.5gb" in query(cluster, "lease", "list", "--tenant", "cyd").out
        top = query(cluster, "top", "--once", "--interval", "0.2", "--json").document
        tenants = {each["tenant"]: each for each in top["tenants"]}
        assert (tenants["cyd"]["jobs"], tenants["cyd"]["held_share"]) == (1, 14)
        assert tenants["ada"]["p99_ms"] >= tenants["ada"]["p50_ms"] > 0
        assert top["status"]["has_helper"] is True
        plain = query(cluster, "top", "--once", "--interval", "0.1").out
        assert ("cyd" in plain, "\x1b" in plain) == (True, False), "no terminal, no terminal codes"
        assert "helper/GPU-0 (A100-40GB, EMULATED): " in plain
        pending.cancel()


def test_an_answer_from_an_emulated_gpu_and_the_doctor_say_so(cluster: Cluster) -> None:
    done = submit(cluster, "echo", "--text", "a", "--json")
    assert done.document["is_emulated"] is True
    assert "echo: computed on an EMULATED GPU" in done.err.splitlines()
    found = [each for each in query(cluster, "doctor", "--json").document if each["code"] == "gpu"]
    assert [each["severity"] for each in found] == ["warning"]
    assert "EMULATED GPUs: helper/GPU-0 (A100-40GB)" in found[0]["what"]


def test_top_does_not_count_what_is_copied_ahead_as_running(cluster: Cluster) -> None:
    with cluster.connect("fay", slots=8) as fay:
        pending = [fay.begin("sleep", seconds(20)) for _ in range(4)]
        until(lambda: states(cluster, "fay") == ["launched", "copied", "queued", "queued"])
        top = query(cluster, "top", "--once", "--interval", "0.1", "--json").document
        (line,) = (each for each in top["tenants"] if each["tenant"] == "fay")
        assert (line["jobs"], line["running"], line["queued"]) == (4, 1, 2)
        head, row = (
            line.split() for line in query(cluster, "top", "--once", "--interval", "0.1").out.splitlines()
            if line.startswith(("tenant", "fay"))
        )  # fmt: skip
        shown = dict(zip(head, row, strict=False))
        assert (shown["running"], shown["placed"], shown["queued"]) == ("1", "1", "2")
        for each in pending:
            each.cancel()


def lease_line(
    lease: int, tenant: str, gpu: str, profile: str, start: int, running: int, *, is_pinned: bool = False
) -> admin.LeaseLine:
    return admin.LeaseLine(
        lease=lease, generation=lease, tenant=tenant, gpu=gpu, profile=profile, start=start, alpha=42, lanes=2,
        state="warm", is_pinned=is_pinned, jobs=1, running=1, running_share=running, held_ms=1.0,
    )  # fmt: skip


def test_a_plan_empties_the_gpu_whose_work_has_room_elsewhere() -> None:
    gpus = [
        admin.GpuLine(gpu=f"g{n}", model="A100-40GB", is_emulated=n == 1, compute_slices=7, held_share=42)
        for n in range(3)
    ]
    held = [
        lease_line(1, "ada", "g0", "4g.20gb", 0, 20),
        lease_line(2, "ada", "g1", "1g.5gb", 0, 10),  # fits what ada has left on g0
        lease_line(3, "bob", "g1", "2g.10gb", 2, 28),  # needs an instance of its own, for which g0 has a place
        lease_line(4, "cyd", "g0", "1g.5gb", 4, 0),  # idle
        lease_line(5, "dee", "g2", "1g.5gb", 0, 0, is_pinned=True),
    ]
    found = proposal(gpus, held)
    assert found.moves[2] == ("g0", "4g.20gb", 0)
    assert found.moves[3][:2] == ("g0", "2g.10gb")
    assert (found.gpus_now, found.gpus_then, found.idle) == (["g0", "g1", "g2"], ["g0", "g2"], [4])
    assert "3 → 2; free then: g1" in found.text()
    assert sorted(each["lease"] for each in found.data()["moves"]) == [2, 3]
    pinned = [each.model_copy(update={"is_pinned": True}) for each in held]
    assert proposal(gpus, pinned).moves == {}
    restricted = [each.model_copy(update={"is_restricted": True}) for each in held]
    assert proposal(gpus, restricted).moves == {}
    assert "nothing to move" in proposal(gpus, []).text()


def test_a_plan_is_asked_of_a_daemon_that_runs(cluster: Cluster) -> None:
    with cluster.connect("cyd") as requester:
        pending = requester.begin("sleep", seconds(20))
        until(lambda: any(line.running for line in leases(cluster)))
        found = query(cluster, "lease", "plan", "--json").document
        assert found["moves"] == []
        assert len(found["gpus_now"]) == len(found["gpus_then"]) == 1
        assert "GPUs at work: 1 → 1" in query(cluster, "lease", "plan").out
        pending.cancel()


def leases(cluster: Cluster) -> list[admin.LeaseLine]:
    with AdminClient(str(cluster.run_folder)) as client:
        return client.query(admin.LeasesRequest(), admin.Leases).leases


def seen(uptime_ms: int, completed: int) -> Seen:
    ended = {"completed": completed}
    line = admin.TenantLine(
        tenant="ada", jobs=0, queued=0, running=0, sessions=0, leases=0, held_share=0, max_share=100, ended=ended,
        p50_ms=0.0, p99_ms=0.0,
    )  # fmt: skip
    return admin.Statistics(uptime_ms=uptime_ms, counters={}, tenants=[line], next=""), [line]


def test_top_counts_from_the_start_of_a_daemon_that_was_started_again() -> None:
    assert rates_of(seen(60_000, 500), seen(61_000, 520)) == {"ada": 20.0}
    assert rates_of(seen(61_000, 520), seen(2_000, 30)) == {"ada": 15.0}


def test_top_redraws_a_terminal_and_ends_with_ctrl_c(cluster: Cluster) -> None:
    ours, theirs = pty.openpty()
    words = ["top", "--interval", "0.1", "--runtime-dir", str(cluster.run_folder)]
    process = subprocess.Popen(
        [sys.executable, "-m", "offpath.cli.main", *words],
        stdout=theirs,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores Ctrl-C
    )
    try:
        os.close(theirs)
        seen = b""
        end = time.monotonic() + TIMEOUT
        while seen.count(b"\x1b[H\x1b[J") < 2 and time.monotonic() < end:
            seen += os.read(ours, 65536)
        assert b"offpathd" in seen
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 130
    finally:
        process.kill()
        process.wait(TIMEOUT)
        os.close(ours)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("request", "show", "999999"), 1, "unknown_job"),
        (("request", "show", "7/9"), 1, "unknown_job"),
        (("request", "show", "seven"), 2, "neither a job's number"),
        (("request",), 2, "VERB"),
    ],
    ids=["unknown job", "unknown session", "no number", "no verb"],
)
def test_exit_codes_say_what_was_wrong(cluster: Cluster, words: tuple[str, ...], code: int, said: str) -> None:
    done = offpath(*words) if len(words) == 1 else query(cluster, *words)
    assert (done.code, said in done.err, done.out) == (code, True, "")


def test_no_daemon_a_bad_token_and_a_bad_configuration_have_codes_of_their_own(cluster: Cluster) -> None:
    assert offpath("lease", "list", "--runtime-dir", str(cluster.folder)).code == 69
    (cluster.folder / "wrong.token").write_text("w" * 24)
    (cluster.folder / "wrong.token").chmod(0o600)
    assert submit(cluster, "echo", tenant="wrong").code == 77
    (cluster.folder / "bad.toml").write_text("[[tenant]]\nname = 'UPPER'\n")
    done = offpath("daemon", "run", "--config", str(cluster.folder / "bad.toml"))
    assert (done.code, "tenant.0.name" in done.err) == (78, True)


def test_lists_come_in_pages(cluster: Cluster) -> None:
    with cluster.connect("dee", slots=8) as bob, AdminClient(str(cluster.run_folder)) as client:
        pending = [bob.begin("sleep", seconds(20)) for _ in range(5)]
        until(lambda: states(cluster, "dee") == ["launched", "copied", "queued", "queued", "queued"])
        first = client.query(admin.JobsRequest(tenant="dee", limit=3), admin.Jobs)
        rest = client.query(admin.JobsRequest(tenant="dee", after=first.next, limit=3), admin.Jobs)
        assert [job.request_id for job in (*first.jobs, *rest.jobs)] == [1, 2, 3, 4, 5]
        assert (first.next, rest.next) == (first.jobs[-1].job, 0)
        assert client.query(admin.JobsRequest(state="queued"), admin.Jobs).jobs
        page = client.query(admin.StatisticsRequest(limit=1), admin.Statistics)
        assert ([each.tenant for each in page.tenants], page.next) == (["ada"], "ada")
        sessions = client.query(admin.SessionsRequest(tenant="dee"), admin.Sessions).sessions
        assert [(each.session, each.jobs) for each in sessions] == [(bob.welcome.session, 5)]
        with pytest.raises(Refused, match="unknown_state"):
            client.query(admin.JobsRequest(state="sleepy"), admin.Jobs)
        listed = query(cluster, "request", "list", "--tenant", "dee", "--state", "queued", "--json").document
        assert [job["request_id"] for job in listed] == [3, 4, 5]
        copied = query(cluster, "request", "list", "--tenant", "dee", "--state", "copied", "--json").document
        assert [job["request_id"] for job in copied] == [2], "a word that the list shows can be asked for"
        assert "sleep" in query(cluster, "request", "list", "--limit", "1").out
        assert query(cluster, "request", "list", "--tenant", "no such name!").code == 1
        for each in pending:
            each.cancel()


def states(cluster: Cluster, tenant: str) -> list[str]:
    with AdminClient(str(cluster.run_folder)) as client:
        return [job.state for job in client.query(admin.JobsRequest(tenant=tenant), admin.Jobs).jobs]


# -- draining -----------------------------------------------------------------------------------------------------
def test_a_drain_lets_what_runs_finish_turns_the_rest_away_and_ends_the_daemon(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": NARROW})
    cluster.start_helper()
    with cluster.connect("ada") as ada:
        running = ada.begin("sleep", seconds(1.5))
        until(lambda: unanswered(cluster) == 1)
        drain = subprocess.Popen(
            [sys.executable, "-m", "offpath.cli.main", "daemon", "drain", "--stop", "--json", "--runtime-dir",
             str(cluster.run_folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        until(lambda: is_draining(cluster))
        with pytest.raises(RequestFailed) as failed:
            ada.submit("echo", seconds(1), timeout=TIMEOUT)
        assert (failed.value.status, failed.value.reason) == (Status.REJECTED, Reason.DRAINING)
        assert failed.value.retry_after_ms == 1000
        with pytest.raises(NegotiationRefused, match="draining"):
            cluster.connect("ada")
        assert running.result(TIMEOUT).array.item() == 1.5
    out, said = drain.communicate(timeout=TIMEOUT)
    assert (drain.returncode, json.loads(out)["is_drained"]) == (0, True)
    assert b"draining: 1 requests unanswered; at most 30 s more" in said
    assert cluster.daemon.ended() == 0


def warnings_of(log: str) -> list[str]:
    return [line for line in log.splitlines() if "WARNING" in line or "ERROR" in line]


def test_ordinary_ends_are_no_warnings_and_a_start_after_drain_and_stop_warns_of_nothing() -> None:
    """A helper is restarted while it holds leases, then the daemon is drained and stopped, and another one started."""
    cluster = Cluster({"ada": NARROW}, {})
    try:
        restart_helper_drain_and_start_again(cluster)
    finally:
        cluster.kill()


def restart_helper_drain_and_start_again(cluster: Cluster) -> None:
    for _ in range(2):
        helper = cluster.start_helper()
        with cluster.connect("ada") as ada:
            ada.submit("echo", seconds(1), timeout=TIMEOUT)
        helper.finish()
        until(lambda: not has_helper(cluster))
    assert warnings_of(cluster.daemon.errors) == []
    done = query(cluster, "daemon", "drain", "--stop")
    assert (done.code, "drained, the daemon ends" in done.err) == (0, True)
    cluster.daemon.ended()
    log = cluster.folder / "again.err"
    again = ["daemon", "run", "--config", str(cluster.config_file), "--runtime-dir", str(cluster.run_folder), "--keep"]
    with open(log, "wb") as errors:
        process = subprocess.Popen([sys.executable, "-m", "offpath.cli.main", "-v", *again], stderr=errors)
    try:
        until(lambda: "offpathd ready" in log.read_text())
        assert "replayed" in log.read_text(), "it goes on with the journal of the one that was drained"
        assert not is_draining(cluster)
        assert warnings_of(log.read_text()) == []
    finally:
        process.terminate()
        process.wait(TIMEOUT)


def test_the_workers_of_a_lease_that_closes_because_it_is_idle_are_not_reported_lost(make_cluster: Make) -> None:
    """They lose their channel, come back at once, and find their lease closing; its helper takes 2 s to kill them."""
    cluster = make_cluster({"ada": NARROW}, keep={}, leasing={"keep_warm_ms": 1, "min_hold_ms": 1})
    cluster.start_helper(environment={"OFFPATH_FAULTS": "helper.close=sleep"})
    with cluster.connect("ada") as ada:
        for _ in range(2):
            ada.submit("echo", seconds(0), timeout=TIMEOUT)
            until(lambda: query(cluster, "lease", "list", "--json").document == [])
    assert warnings_of(cluster.daemon.errors) == []


def test_who_leaves_the_host_channel_before_its_hello_is_no_warning(make_cluster: Make) -> None:
    """A worker of a closing lease may be ended between connecting and saying who it is; there is nothing to do."""
    cluster = make_cluster({"ada": NARROW})
    for _ in range(3):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
            silent.connect(str(cluster.run_folder / "host.sock"))
    until(lambda: cluster.daemon.errors.count("host channel: refused pid") == 3)
    assert warnings_of(cluster.daemon.errors) == []


def has_helper(cluster: Cluster) -> bool:
    with AdminClient(str(cluster.run_folder)) as client:
        return client.query(admin.StatusRequest(), admin.Status).has_helper


def is_draining(cluster: Cluster) -> bool:
    with AdminClient(str(cluster.run_folder)) as client:
        return client.query(admin.StatusRequest(), admin.Status).is_draining


def test_a_drain_that_takes_too_long_says_so_and_can_be_called_off(cluster: Cluster) -> None:
    with cluster.connect("eve") as bob:
        pending = bob.begin("sleep", seconds(20))
        until(lambda: unanswered(cluster) == 1)
        done = query(cluster, "daemon", "drain", "--limit-ms", "100")
        assert (done.code, "not drained after 0.1 s: 1 requests unanswered" in done.err) == (1, True)
        assert is_draining(cluster)
        assert query(cluster, "daemon", "drain", "--off").code == 0
        assert not is_draining(cluster)
        pending.cancel()
    with cluster.connect("ada") as ada:
        assert ada.submit("echo", seconds(3), timeout=TIMEOUT).array == 3


def test_a_wait_that_is_no_number_is_a_usage_error_and_drains_nothing() -> None:
    for text in ("-3", "1e3", "x", "9" * 13):
        done = offpath("daemon", "drain", f"--limit-ms={text}", "--runtime-dir", "/nowhere")
        assert (done.code, "is not a number of milliseconds" in done.err) == (2, True)


def test_a_full_disk_or_a_reader_that_left_is_no_traceback() -> None:
    words = [sys.executable, "-m", "offpath.cli.main", "errors"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "offpath: standard output or a file cannot be written: No space left on device\n"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")
