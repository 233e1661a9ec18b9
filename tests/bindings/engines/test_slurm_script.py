"""The batch script by itself, run by sh beside programs that answer as Slurm's do: the command runs only after
slurmctld was made to write its state and knew the job before and after. On a real one: test_slurm_submissions.py."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from offpath.bindings.engines.port import Place, Start
from offpath.bindings.engines.slurm_reading import FORGOTTEN, RAN_BEFORE
from offpath.bindings.engines.slurm_script import Submission

NONCE = "n1"
SCONTROL = """#!/bin/sh
echo "scontrol $*" >>"$LOG"
case $1 in update) exit 0 ;; esac
count=$(grep -c 'show job' "$LOG")
answer=$(sed -n "${count}p" "$ANSWERS")
case $answer in
    down) echo "slurm_load_jobs error: Unable to contact slurm controller"; exit 1 ;;
    unknown) echo "slurm_load_jobs error: Invalid job id specified"; exit 1 ;;
esac
echo "$answer"
"""
SRUN = """#!/bin/sh
echo "srun" >>"$LOG"
"""
START = Start(identity="j-1", places=(Place("h0", 1),), argv=("true",))


def known(began: str = "2026-11-28T10:00:00", state: str = "RUNNING", identity: str = "j-1") -> str:
    comment = Submission().comment(identity, NONCE)
    return f"JobId=7 JobName=offpath-j-1 JobState={state} Comment={comment} StartTime={began}"


def ran(folder: Path, *answers: str) -> tuple[int, list[str]]:
    """The script's exit code, and the commands that it gave, while slurmctld answers its questions so."""
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "answers").write_text("".join(f"{answer}\n" for answer in answers))
    (log := folder / "log").write_text("")
    submission = Submission(programs=f"{folder}/", once=str(folder / "once"), settle_s=0)
    environment = {"PATH": os.environ["PATH"], "LOG": str(log), "ANSWERS": str(folder / "answers"), "SLURM_JOB_ID": "7"}
    done = subprocess.run(
        ["/bin/sh"], input=submission.script(START, NONCE), env=environment, cwd=folder, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    said = [" ".join(line.split()[:2]) for line in log.read_text().splitlines()]
    return done.returncode, said


def test_the_command_runs_after_slurmctld_wrote_its_state_and_knew_the_job_before_and_after(tmp_path: Path) -> None:
    assert ran(tmp_path, known(), known()) == (0, ["scontrol -o", "scontrol update", "scontrol -o", "srun"])


def test_while_slurmctld_is_down_it_waits(tmp_path: Path) -> None:
    code, said = ran(tmp_path, "down", known(), known())
    assert code == 0
    assert said == ["scontrol -o", "scontrol -o", "scontrol update", "scontrol -o", "srun"]


@pytest.mark.parametrize(
    "answers",
    [
        ("unknown",),
        (known(state="COMPLETING"),),
        (known(identity="j-2"),),
        (known(), "unknown"),
        (known(), known(began="2026-11-28T10:00:09")),
    ],
    ids=["unknown", "not running", "another job with this id", "forgotten meanwhile", "started again meanwhile"],
)
def test_a_job_that_slurmctld_forgot_does_not_run_its_command(answers: tuple[str, ...], tmp_path: Path) -> None:
    code, said = ran(tmp_path, *answers)
    assert code == FORGOTTEN
    assert "srun" not in said


def test_a_command_that_ran_before_does_not_run_again(tmp_path: Path) -> None:
    assert ran(tmp_path, known(), known())[0] == 0
    code, said = ran(tmp_path, known(), known())
    assert code == RAN_BEFORE
    assert "srun" not in said


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user's folder")
@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_another_users_folder_of_the_name_stops_nobody(kind: str, tmp_path: Path) -> None:
    """Anybody can make what he likes in /var/tmp. A job of root ran nowhere on such a node, and said nothing."""
    squat = tmp_path / f"once-{os.geteuid()}"
    {"folder": squat.mkdir, "link": lambda: squat.symlink_to(tmp_path), "file": squat.touch}[kind]()
    os.chown(squat, 65534, 65534, follow_symlinks=False)
    assert ran(tmp_path, known(), known())[0] == 0
    (own,) = tmp_path.glob("once-*.*")
    assert (own.stat().st_uid, own.stat().st_mode & 0o777) == (os.geteuid(), 0o700)
    assert ran(tmp_path, known(), known())[0] == RAN_BEFORE, "and it is found again"
    assert len(list(tmp_path.glob("once-*.*"))) == 1


@pytest.mark.parametrize("mine", ["once-{uid}", "once-{uid}.aaaaaaaaaa", "once-{uid}.zzzzzzzzzz"])
def test_a_mark_counts_in_whichever_of_the_users_folders_it_is(mine: str, tmp_path: Path) -> None:
    for each in ("once-{uid}", "once-{uid}.aaaaaaaaaa", "once-{uid}.zzzzzzzzzz"):
        (tmp_path / each.format(uid=os.geteuid())).mkdir(mode=0o700)
    (tmp_path / mine.format(uid=os.geteuid()) / "j-1").mkdir()
    code, said = ran(tmp_path, known(), known())
    assert code == RAN_BEFORE
    assert "srun" not in said
