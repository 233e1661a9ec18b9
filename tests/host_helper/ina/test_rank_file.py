"""The pages between ranks and helper: newest word each way, whole or not at all, whatever lies in the folder."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from offpath.bindings.errors import RegionError
from offpath.host_helper.ina.folder import Measured, RankFileFolder
from offpath.host_helper.ina.rank_file import (
    MARK,
    PAGE_BYTES,
    PATTERN,
    STATE,
    RankFileError,
    RankStateFile,
    file_name,
    make_folder,
    parse_name,
)
from offpath.sched.ina.patterns import AllReduce, Pattern
from offpath.sched.ina.protocol.records import EpochRecord, Grant, RankState

from ...support.processes import until

ME = RankState("job/of ä.b", 7, 2, 4)
EPOCH_1 = EpochRecord(ME.job, 7, 1, 1, Grant("tree", ("unix:///s",) * 4, "token"))
EPOCH_2 = replace(EPOCH_1, number=2, grant=None)


@pytest.fixture
def folder(tmp_path: Path) -> RankFileFolder:
    return RankFileFolder(str(tmp_path))


@pytest.fixture
def state_file(tmp_path: Path) -> RankStateFile:
    return RankStateFile(str(tmp_path), ME)


def test_a_page_is_its_owners_alone(state_file: RankStateFile) -> None:
    assert os.stat(state_file.path).st_mode & 0o777 == 0o600
    assert os.path.getsize(state_file.path) == PAGE_BYTES
    assert os.stat(state_file.path).st_blocks * 512 < 65_536, "sparse"


def test_each_state_is_told_once_and_the_newest_only(folder: RankFileFolder, state_file: RankStateFile) -> None:
    assert folder.poll() == (ME,)
    assert folder.poll() == ()
    for index in (1, 2, 3):
        state_file.write_state(replace(ME, index=index))
    assert folder.poll() == (replace(ME, index=3),)
    assert folder.states() == (replace(ME, index=3),)


def test_a_pattern_arrives_as_it_was(folder: RankFileFolder, state_file: RankStateFile) -> None:
    pattern = Pattern(ME.job, (AllReduce(1_234_567_891, 400), AllReduce(2_000_000_003, 8)), 3_000_000_001)
    state_file.write_pattern(pattern)
    folder.poll()
    assert folder.patterns() == (Measured(ME.job, 7, 2, pattern),)
    assert folder.patterns() == ()


def test_epochs_reach_pages_that_are_there_and_those_that_come(folder: RankFileFolder, tmp_path: Path) -> None:
    with RankStateFile(str(tmp_path), ME) as first:
        folder.poll()
        assert folder.publish(EPOCH_1) == 1
        assert folder.publish(EPOCH_2) == 1
        assert (first.read_epoch(), first.read_epoch()) == (EPOCH_2, None)
        with RankStateFile(str(tmp_path), replace(ME, rank=3)) as second:
            folder.poll()
            assert second.read_epoch() == EPOCH_2
            assert folder.publish(EPOCH_1) == 2, "an older one: they keep the newer"
            assert (first.read_epoch(), second.read_epoch()) == (None, None)
        other = replace(EPOCH_1, incarnation=8)
        assert folder.publish(other) == 0


def test_a_helper_that_was_restarted_finds_all_and_goes_on(folder: RankFileFolder, state_file: RankStateFile) -> None:
    folder.poll()
    folder.publish(EPOCH_1)
    folder.close()
    anew = RankFileFolder(folder.directory)
    assert anew.poll() == (ME,)
    assert anew.publish(EPOCH_2) == 1
    assert state_file.read_epoch() == EPOCH_2


def test_a_rank_that_ends_is_gone(folder: RankFileFolder, state_file: RankStateFile) -> None:
    folder.poll()
    state_file.close()
    assert folder.poll() == (replace(ME, is_gone=True),)
    assert folder.states() == folder.poll() == ()


DIES = """
import os, sys, time
from offpath.host_helper.ina.rank_file import RankStateFile
from offpath.sched.ina.protocol.records import RankState
page = RankStateFile(sys.argv[1], RankState("dies", 1, 0, 1))
page.write_state(RankState("dies", 1, 0, 1, index=5))
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), 9)
"""


def test_a_killed_rank_is_gone_although_a_child_of_its_lives_on(folder: RankFileFolder) -> None:
    """A data loader's worker, forked with the page's lock."""
    with subprocess.Popen(
        [sys.executable, "-c", DIES, folder.directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as rank:
        assert rank.stdin is not None
        assert rank.stdout is not None
        child = int(rank.stdout.readline())
        last = RankState("dies", 1, 0, 1, index=5)
        assert folder.poll() == (last,)
        rank.stdin.write(b"\n")
        rank.stdin.flush()
        rank.wait(10)
        assert until(folder.poll) == (replace(last, is_gone=True),)  # the child lets go when it first runs
        assert os.listdir(folder.directory) == []
        os.kill(child, signal.SIGKILL)  # raises, had it ended


def test_a_reader_never_sees_half_a_record(folder: RankFileFolder, state_file: RankStateFile) -> None:
    """One writes epochs of very different lengths, one reads."""
    folder.poll()
    grants = [Grant("t" * (n * 37 % 200 + 1), ("a" * 200,) * 4, "x") for n in range(400)]
    epochs = {n: replace(EPOCH_1, number=n, grant=grants[n]) for n in range(1, 400)}
    done = threading.Event()

    def publish() -> None:
        for each in epochs.values():
            folder.publish(each)
        done.set()

    writer = threading.Thread(target=publish)
    writer.start()
    seen = []
    while True:
        is_done = done.is_set()
        if (found := state_file.read_epoch()) is not None:
            assert found == epochs[found.number]
            seen.append(found.number)
        elif is_done:
            break
    writer.join()
    assert seen == sorted(seen)
    assert seen[-1] == 399


def test_what_is_no_page_is_counted_and_left_alone(folder: RankFileFolder, tmp_path: Path) -> None:
    names = [
        "x.page",
        "job.1.page",
        "job.1.4294967296.page",
        "job.01.2.page",
        "a%zz.1.2.page",
        ".page",
        f"{'9' * 30}.page",
    ]
    for name in [*names, file_name("short", 1, 0), "not one"]:
        (tmp_path / name).write_bytes(b"x" * 10)
    (tmp_path / file_name("link", 1, 0)).symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / file_name("pipe", 1, 0))
    (tmp_path / file_name("folder", 1, 0)).mkdir()
    assert folder.poll() == ()
    assert folder.ignored == len(names) + 4
    assert folder.poll() == ()
    assert folder.ignored == len(names) + 4, "once each"
    assert len(os.listdir(tmp_path)) == len(names) + 5


@pytest.mark.parametrize("area", [STATE, PATTERN], ids=["state", "pattern"])
@pytest.mark.parametrize(
    "spoilt", [MARK.pack(2, 10, 0) + b"x" * 10, MARK.pack(40, (1 << 32) - 1, 0), b"\xff" * 60, b"\0" * 60],
    ids=["crc", "length", "odd", "none"],
)  # fmt: skip
def test_spoilt_areas_are_ignored_until_written_anew(
    area: object, spoilt: bytes, folder: RankFileFolder, state_file: RankStateFile
) -> None:
    folder.poll()
    fd = os.open(state_file.path, os.O_WRONLY)
    os.pwrite(fd, spoilt, STATE.offset if area is STATE else PATTERN.offset)
    os.close(fd)
    assert folder.poll() == ()
    state_file.write_state(replace(ME, index=9))
    assert folder.poll() == (replace(ME, index=9),)


def test_a_state_of_another_rank_is_ignored(folder: RankFileFolder, state_file: RankStateFile) -> None:
    folder.poll()
    for other in (replace(ME, rank=1), replace(ME, job="x"), replace(ME, ranks=5), replace(ME, is_gone=True)):
        state_file.write_state(other)
        assert folder.poll() == ()
    assert folder.ignored == 4


def test_a_page_cut_short_ends_nobody(folder: RankFileFolder, state_file: RankStateFile) -> None:
    folder.poll()
    os.truncate(state_file.path, 100)
    assert folder.poll() == ()
    assert state_file.read_epoch() is None
    state_file.write_state(replace(ME, index=1))
    assert folder.poll() == (replace(ME, index=1),)
    assert folder.publish(EPOCH_1) == 1
    assert state_file.read_epoch() == EPOCH_1


def test_an_epoch_too_long_for_the_page_is_not_published(folder: RankFileFolder, state_file: RankStateFile) -> None:
    folder.poll()
    long = replace(EPOCH_1, grant=Grant("tree", ("a" * 255,) * 60_000, "token"))
    assert folder.publish(long) == 0
    assert state_file.read_epoch() is None
    with pytest.raises(RankFileError, match="a record of"):
        state_file.write_pattern(Pattern("job", (AllReduce(1, 1 << 40),) * 200_000, 1))


@pytest.mark.parametrize("job", ["", "x" * 300, "ü" * 100])
def test_a_job_whose_name_fits_no_file_has_no_page(job: str, tmp_path: Path) -> None:
    with pytest.raises(RankFileError):
        RankStateFile(str(tmp_path), RankState(job, 1, 0, 1))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("job", ["a.b.c", "..", "a/b", "%2f", "ä ö", ".page"])
def test_names_of_jobs_come_back_as_they_were(job: str) -> None:
    name = file_name(job, 12, 3)
    assert "/" not in name
    assert parse_name(name) == (job, 12, 3)


def test_two_processes_cannot_both_be_a_rank(state_file: RankStateFile, tmp_path: Path) -> None:
    """The second one's page takes the name; the first, which nobody sees any more, ends as if it had no agent."""
    second = RankStateFile(str(tmp_path), ME)
    fd = os.open(second.path, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.close(fd)
    second.close()


def test_the_folder_must_be_ours(tmp_path: Path) -> None:
    make_folder(str(tmp_path / "ina"))
    assert os.stat(tmp_path / "ina").st_mode & 0o777 == 0o700
    os.chmod(tmp_path / "ina", 0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("ina", "link"):
        with pytest.raises(RegionError):
            make_folder(str(tmp_path / name))
    assert RankFileFolder(str(tmp_path / "not there")).poll() == ()
