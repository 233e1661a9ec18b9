"""The batch script of a job that the controller starts by Slurm, and the options of sbatch.

Before the command the script makes sure that it runs at most once, and never behind slurmctld's back. slurmctld writes
its state within 5 s of a command that changes it (slurmctld/state_save.c, SAVE_MAX_WAIT). The start of a job is no such
command: where nothing else happens, it is written minutes later. Killed before that, slurmctld forgets that the job was
started, kills it when its node registers, and may use its id again. The script therefore waits:

1. It sets the job's Requeue to 0, which it is already: slurmctld then writes its state. slurmctld must know the job as
   running, with the comment of this submission, before that and `settle_s` later, with the same start time. Then the
   start is on its disk: the same slurmctld had the time to write it, or another one read it from there. Unknown: the
   script ends with `FORGOTTEN`. While slurmctld is down, it waits.
2. It makes a folder named by the identity in `once` on the first node. A folder that is there means that the command
   ran before: the script ends with `RAN_BEFORE`. A job keeps its nodes, and Slurm runs the script on the first of them.
   Any user can make a folder of the name of `once`, so the user's own may have letters behind that name. The mark is
   made in the first of them and looked for in all: two scripts that make their folders at once never both go on.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from offpath.bindings.engines.port import PATH, Place, Start
from offpath.bindings.engines.slurm_reading import FORGOTTEN, MARK, RAN_BEFORE

ONCE: Final = "/var/tmp/offpath-once"
_SCRIPT: Final = """#!/bin/sh
:
PATH=${{PATH:-{path}}}
known() {{ # prints the start time of this submission; 1: slurmctld is down; {forgotten}: it does not know it as running
    found=$({scontrol} -o show job "$SLURM_JOB_ID" 2>&1) || {{
        case $found in *"Invalid job id"*) return {forgotten} ;; *) return 1 ;; esac
    }}
    found=$(printf '%s\\n' "$found" | head -n 1)
    case " $found " in *" Comment={comment} "*) ;; *) return {forgotten} ;; esac
    case " $found " in *" JobState=RUNNING "*) ;; *) return {forgotten} ;; esac
    printf '%s\\n' "$found" | tr ' ' '\\n' | sed -n 's/^StartTime=//p'
}}
settled() {{
    until began=$(known); do
        [ $? != {forgotten} ] || exit {forgotten}
        sleep 1
    done
}}
settled
first=$began
{scontrol} update JobId="$SLURM_JOB_ID" Requeue=0 >/dev/null 2>&1 # fails while slurmctld is down
sleep {settle}
settled
[ "$began" = "$first" ] || exit {forgotten}
once={once}-$(id -u)
own() {{
    find "${{once%/*}}/" -mindepth 1 -maxdepth 1 -type d -user "$(id -u)" \
        '(' -name "${{once##*/}}" -o -name "${{once##*/}}.*" ')' 2>/dev/null | LC_ALL=C sort
}}
mkdir -p "${{once%/*}}"
mkdir -m 700 "$once" 2>/dev/null || [ -n "$(own)" ] || mktemp -d "$once.XXXXXXXXXX" >/dev/null
marks=$(own | head -n 1)
if [ -z "$marks" ]; then
    echo "offpath: the job cannot start: no folder $once or $once.* can be made on $(hostname)" >&2
    exit 1
fi
own | while IFS= read -r each; do
    find "$each" -mindepth 1 -maxdepth 1 -type d -mtime +60 -exec rmdir {{}} + 2>/dev/null
done
mkdir "$marks/{identity}" 2>/dev/null || exit {ran_before}
marked=$(own | while IFS= read -r each; do [ ! -d "$each/{identity}" ] || echo "$each"; done)
[ "$marked" = "$marks" ] || exit {ran_before}
srun=$(command -v {srun}) || exit 127
(
{exports}
    exec "$srun" {groups} --kill-on-bad-exit=1 --export=ALL --input=none sh -c {wrapper} {argv}
)
code=$?
case $code in {forgotten} | {ran_before}) code=1 ;; esac
exit $code
"""


@dataclass(frozen=True, slots=True)
class Submission:
    """How a `Start` is submitted. ``programs``: the folder of Slurm's commands on controller and nodes, ending in a
    slash, or empty: PATH. ``once``: the folder, with the user's id behind it, of the marks of commands that ran.
    ``settle_s``: see the module's text, at least 6; 0 only where slurmctld is never killed. ``options``: of sbatch, the
    operator's."""

    programs: str = ""
    once: str = ONCE
    settle_s: float = 7.0
    options: tuple[str, ...] = ()

    def comment(self, identity: str, nonce: str) -> str:
        """By which the submission is recognised: Slurm's ids are not unique."""
        return f"{MARK}{identity}:{nonce}"

    def words(self, start: Start, nonce: str) -> list[str]:
        """Options of sbatch, a component per kind of place; without those of `held`."""
        common = [
            f"--job-name={name(start.identity)}", f"--comment={self.comment(start.identity, nonce)}", "--no-requeue",
            "--export=NIL", f"--chdir={start.working_directory}", "--input=/dev/null",
            f"--output={start.output}.batch" if start.output else "--output=/dev/null", "--open-mode=append",
        ]  # fmt: skip
        if start.user:
            common.append(f"--uid={start.user}")
        words: list[str] = []
        for component in components(start.places):
            first = component[0]
            words += [":"] if words else []
            words += [*self.options, *common, f"--nodes={len(component)}", f"--ntasks={len(component)}"]
            words += ["--ntasks-per-node=1", f"--nodelist={','.join(place.node for place in component)}"]
            if first.gpu_count:
                words.append("--gres=gpu:" + (f"{first.model}:" if first.model else "") + str(first.gpu_count))
        return words

    def script(self, start: Start, nonce: str) -> str:
        """See the module's text."""
        count = len(components(start.places))
        indices = {place.node: index for index, place in enumerate(start.places)}
        choices = " ".join(f"{node}) OFFPATH_PLACE={index} ;;" for node, index in indices.items())
        wrapper = (
            f"case $SLURMD_NODENAME in {choices} *) exit 1 ;; esac; OFFPATH_NODE=$SLURMD_NODENAME;"
            " CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-}; export OFFPATH_PLACE OFFPATH_NODE CUDA_VISIBLE_DEVICES;"
        )
        target = f">>{shlex.quote(start.output)}.$OFFPATH_PLACE" if start.output else ">/dev/null"
        wrapper += f' exec {target} 2>&1; exec "$@"'
        variables = {
            "PATH": PATH, **start.environment,
            "OFFPATH_JOB": start.identity, "OFFPATH_PLACES": str(len(start.places)),
        }  # fmt: skip
        return _SCRIPT.format(
            path=PATH, forgotten=FORGOTTEN, ran_before=RAN_BEFORE, settle=f"{self.settle_s:g}", identity=start.identity,
            scontrol=shlex.quote(self.programs + "scontrol"), srun=shlex.quote(self.programs + "srun"),
            comment=self.comment(start.identity, nonce), once=shlex.quote(self.once),
            exports="\n".join(f"    export {key}={shlex.quote(value)}" for key, value in variables.items()),
            groups=f"--het-group=0-{count - 1}" if count > 1 else "--ntasks-per-node=1",
            wrapper=shlex.quote(wrapper), argv=shlex.join(("sh", *start.argv)),
        )  # fmt: skip


def components(places: Iterable[Place]) -> list[Sequence[Place]]:
    """Places with as many GPUs of one model each are a component of a heterogeneous job. The first place stays in the
    first: the script runs on its node."""

    def kind(place: Place) -> tuple[int, str]:
        return place.gpu_count, place.model

    given = tuple(places)
    ordered = sorted(given, key=lambda place: (kind(place) != kind(given[0]), kind(place)))
    return [tuple(group) for _, group in groupby(ordered, kind)]


def name(identity: str) -> str:
    """The job's name in Slurm: `squeue --name` finds its submissions."""
    return f"offpath-{identity}"
