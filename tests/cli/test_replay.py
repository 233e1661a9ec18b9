"""`offpath replay`: a real daemon's journal decides the same again, record by record, and a changed one does not."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from offpath.bindings.wire.codes import Status
from offpath.dpu_daemon.durability.journal import codec
from offpath.dpu_daemon.durability.journal.ring import HEADER_PAGE, RECORD_BYTES, Entry, ReadOnlyFile, Ring
from offpath.host_helper import AsyncRequester, Options, RequestFailed

from ..support.cluster import TIMEOUT, Cluster
from ..support.command import offpath

JOBS = 2_400
TENANTS = ("ada", "bob")


async def work(cluster: Cluster, tenant: str, ends: Counter[str]) -> None:
    """Requests of all sorts: most complete, some are given up, some cannot be in time."""
    token = str(cluster.folder / f"{tenant}.token")
    async with await AsyncRequester.open(cluster.address, tenant=tenant, token_file=token, slots=16) as requester:
        numbers = iter(range(JOBS // len(TENANTS)))

        async def one_after_the_other() -> None:
            for number in numbers:
                if number == JOBS // 4 and tenant == "ada":
                    assert cluster.helper is not None
                    cluster.helper.kill()
                    cluster.start_helper()  # by this thread: the helper ends with the thread that started it
                kernel, seconds, options = "echo", 0.0, Options()
                if number % 40 == 7:
                    kernel, seconds, options = "sleep", 0.03, Options(budget_ms=15)
                elif number % 40 == 20:
                    kernel, seconds = "sleep", 0.02
                task = asyncio.create_task(requester.submit(kernel, [np.array([seconds])], options=options))
                if number % 40 == 20:
                    await asyncio.sleep(0.005)
                    task.cancel()
                try:
                    async with asyncio.timeout(TIMEOUT):
                        await task
                    ends["completed"] += 1
                except RequestFailed as failed:
                    ends[failed.status.name.lower()] += 1
                    if failed.status is Status.REJECTED:
                        await asyncio.sleep(0.05)
                except asyncio.CancelledError:
                    ends["given up"] += 1

        await asyncio.gather(*(one_after_the_other() for _ in range(8)))


@pytest.fixture(scope="module")
def story() -> Iterator[tuple[Cluster, Counter[str], Path]]:
    """A cluster that has worked, what its requesters were told, and a copy of the journal made while it lives."""
    cluster = Cluster({name: {} for name in TENANTS}, durability={"journal_mib": 8, "resume_ttl_s": 5})
    try:
        cluster.start_helper()
        ends: Counter[str] = Counter()

        async def all_tenants() -> None:
            await asyncio.gather(*(work(cluster, name, ends) for name in TENANTS))

        asyncio.run(all_tenants())
        copy = cluster.folder / "copy"
        shutil.copyfile(cluster.run_folder / "journal", copy)
        yield cluster, ends, copy
        cluster.close()
    finally:
        cluster.kill()


def entries_of(path: Path) -> list[Entry]:
    ring = Ring.opened(ReadOnlyFile(str(path)))
    return list(ring.entries(ring.oldest_checkpoint()))


def test_replay_of_a_real_journal_gives_the_same_commands_record_by_record(
    story: tuple[Cluster, Counter[str], Path],
) -> None:
    cluster, told, copy = story
    done = offpath("replay", str(copy), "--json")
    assert done.code == 0, done.err
    found = done.document
    entries = entries_of(copy)
    values = [value for entry in entries if entry.kind != codec.KIND_CHECKPOINT for value in codec.values(entry)]
    happened = sum(map(codec.is_event, values))
    assert found["commands"] == len(values) - happened > 2 * JOBS
    assert sum(found["events"].values()) == happened
    assert (found["lineage"], found["fault"]) == (cluster.lineage, "")
    assert found["checkpoints"] >= 2
    assert found["jobs_accepted"] >= 2_000
    ends: Counter[str] = Counter()
    for each in found["ends"]:
        ends[each["state"]] += each["jobs"]
    assert sum(ends.values()) >= JOBS, "what surely did not start is submitted again by the library"
    assert found["helper_losses"] == 1
    assert found["expiries"] == ends["expired"] == told["expired"] > 0
    assert 0 < ends["cancelled"] <= found["cancels"] <= told["given up"]
    # a job may complete before its requester's cancellation reaches the daemon: the requester does not see that answer
    late = ends["completed"] - told["completed"]
    # The helper's death may end what its requester had just given up, and so did not hear the end of.
    unheard = ends["outcome_unknown"] - told["outcome_unknown"]
    assert late >= 0 <= unheard
    assert late + unheard <= told["given up"] - ends["cancelled"]


def test_whatif_asks_another_policy_of_a_real_journal(story: tuple[Cluster, Counter[str], Path]) -> None:
    """The jobs that ran, their tenants and the node's GPU, by the same book: once as it is, once otherwise."""
    _, told, copy = story
    done = offpath("whatif", str(copy), "--policy", "exclusive", "--json")
    assert done.code == 0, done.err
    found = done.document
    assert found["policy"] == ["oldest-gpu-first", "exclusive"]
    assert found["gpus"] == [1, 1]
    assert found["jobs"] >= told["completed"]
    assert found["completed"][0] == found["jobs"] > found["completed"][1] > 0, "too slow: the tenants' queues are full"
    assert found["decisions_that_differ"] > 0
    assert set(found["tenants"]) <= set(TENANTS)
    assert found["p99_ms"][1] > found["p99_ms"][0] > 0, "a GPU for each job, one job at a time"
    assert found["tenants_hurt"] != []
    assert found["recorded_p50_ms"] > 0
    more = offpath("whatif", str(copy), "--gpus", "3:A100-40GB")
    assert more.code == 0, more.err
    assert "1 → 3" in more.out
    assert "as recorded" in more.out


def test_whatif_compares_gpus_by_their_place_and_not_by_the_spelling_of_their_names(
    story: tuple[Cluster, Counter[str], Path],
) -> None:
    """The daemon calls the GPU helper/GPU-0, a fleet asked for by --gpus calls the same one gpu-0."""
    copy = story[2]
    done = offpath("whatif", str(copy), "--gpus", "1:A100-40GB", "--json")
    assert done.code == 0, done.err
    assert (done.document["decisions_that_differ"], done.document["first_that_differ"]) == (0, [])


def test_whatif_refuses_what_it_cannot_answer(story: tuple[Cluster, Counter[str], Path], tmp_path: Path) -> None:
    _, _, copy = story
    broken = tmp_path / "jobs.csv"
    broken.write_text("submit_time_s,duration_s,num_gpus,vc\n1,2,3,a\n4,-5,1,a\n")
    for arguments, said in (
        ((str(copy),), "nothing to compare"),
        ((str(copy), "--gpus", "0"), "N from 1"),
        ((str(copy), "--gpus", "2:GTX"), "no GPU model"),
        ((str(tmp_path / "none"), "--gpus", "2"), "No such file"),
        ((str(broken), "--gpus", "2"), "jobs.csv:3: duration_s is -5"),
    ):
        done = offpath("whatif", *arguments)
        assert done.code == 1
        assert said in done.err
        assert "Traceback" not in done.err


def test_replay_reads_a_journal_that_is_being_written(story: tuple[Cluster, Counter[str], Path]) -> None:
    """Every start sees another end, and each of them is a whole one."""
    cluster, _, _ = story
    path = cluster.run_folder / "journal"

    async def read_on_and_on() -> list[int]:
        ends: Counter[str] = Counter()
        is_read = asyncio.Event()
        working = asyncio.create_task(work_until(is_read, cluster, ends))
        seen = []
        for _ in range(3):
            done = await asyncio.to_thread(offpath, "replay", str(path), "--json", "--from", "newest")
            assert done.code == 0, done.err
            seen.append(done.document["last_record"])
        is_read.set()
        await working
        return seen

    seen = asyncio.run(read_on_and_on())
    assert seen == sorted(seen)
    assert seen[0] < seen[-1]


async def work_until(is_read: asyncio.Event, cluster: Cluster, ends: Counter[str]) -> None:
    token = str(cluster.folder / "ada.token")
    async with await AsyncRequester.open(cluster.address, tenant="ada", token_file=token) as requester:
        while not is_read.is_set():
            await requester.submit("echo", [np.array([ends["completed"]])], timeout=TIMEOUT)
            ends["completed"] += 1


def test_replay_names_the_record_when_the_time_of_one_event_was_changed(
    story: tuple[Cluster, Counter[str], Path],
) -> None:
    _, _, copy = story
    entries = entries_of(copy)
    entry = random.Random(11).choice([entry for entry in entries[:-1000] if entry.kind != codec.KIND_CHECKPOINT])
    changed = copy.with_name("changed")
    data = bytearray(copy.read_bytes())
    records = (len(data) - HEADER_PAGE) // RECORD_BYTES
    at = HEADER_PAGE + entry.number % records * RECORD_BYTES
    struct.pack_into("<Q", data, at + 16, entry.time_ns + 1)
    struct.pack_into("<I", data, at, zlib.crc32(data[at + 4 : at + RECORD_BYTES]))  # a good record of another time
    changed.write_bytes(data)
    done = offpath("replay", str(changed))
    assert done.code == 1
    assert "STOPPED at a fault" in done.out
    named = re.search(r"record (\d+)", done.err)
    assert named is not None
    assert entry.number <= int(named[1]) <= entries[-1].number, "at the next decision, or before it"
    found = offpath("replay", str(changed), "--json").document
    assert (found["last_record"], found["fault"] in done.err) == (int(named[1]), True)


def test_replay_says_what_is_written_and_what_the_book_decides(story: tuple[Cluster, Counter[str], Path]) -> None:
    _, _, copy = story
    entry = next(e for e in entries_of(copy) if e.kind > codec.DECIDED and e.data[3] == codec.FIRST_COMMAND)
    changed = copy.with_name("changed")
    data = bytearray(copy.read_bytes())
    at = HEADER_PAGE + entry.number % ((len(data) - HEADER_PAGE) // RECORD_BYTES) * RECORD_BYTES
    data[at + 24 + 6] ^= 1  # behind the entry's head and the command's: the command's job
    struct.pack_into("<I", data, at, zlib.crc32(data[at + 4 : at + RECORD_BYTES]))
    changed.write_bytes(data)
    done = offpath("replay", str(changed))
    assert done.code == 1
    assert f"record {entry.number} contains Copy(" in done.err
    assert "the book now decides Copy(" in done.err
    data[at] ^= 1  # now its checksum is wrong
    changed.write_bytes(data)
    done = offpath("replay", str(changed))
    assert done.code == 1
    assert f"record {entry.number} (byte {at}) is invalid" in done.err


def test_replay_lists_entries_for_people(story: tuple[Cluster, Counter[str], Path]) -> None:
    _, _, copy = story
    entries = entries_of(copy)
    lines = offpath("replay", str(copy), "--list").out.splitlines()
    told = [
        entry.number
        for entry in entries
        for _ in (codec.values(entry) if entry.kind != codec.KIND_CHECKPOINT else ("checkpoint",))
    ]
    assert [int(line.split()[0]) for line in lines] == told
    assert any("JobSubmitted job=" in line for line in lines)
    assert any("Answer job=" in line for line in lines)
    documents = offpath("replay", str(copy), "--list", "--json").out.splitlines()
    assert [json.loads(line)["record"] for line in documents] == told


def test_what_is_no_journal_is_said_to_be_none(tmp_path: Path) -> None:
    for content in (b"", b"x" * 100, b"\0" * (HEADER_PAGE + 2048 * RECORD_BYTES), random.Random(1).randbytes(200_000)):
        path = tmp_path / "file"
        path.write_bytes(content)
        done = offpath("replay", str(path))
        assert (done.code, done.out) == (1, "")
        assert "not a journal" in done.err
    assert "No such file" in offpath("replay", str(tmp_path / "none")).err
