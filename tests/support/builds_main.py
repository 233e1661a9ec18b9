"""What one build makes of the same seeds and files: ``python -m tests.support.builds_main DO FOLDER SEED…``.

``write``: the stories of job-book worlds, as journals in FOLDER. ``replay``: replays the journals of FOLDER, which
compares each decision, and prints the digest of the book that each leads to. ``schema``: prints what a journal's
meaning depends on, and the type hints of every record.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from pathlib import Path
from unittest import mock

import orjson

from offpath.bindings.build import compiled
from offpath.dpu_daemon.durability.journal.log import our_schema
from offpath.dpu_daemon.durability.journal.ring import Identity
from offpath.sched.gpu import geometry, plugin, policy
from offpath.sched.jobs import commands, events, records, service
from offpath.sched.jobs.snapshot import schema, snapshot
from offpath.sched.plain import field_names, own_hints

from ..dpu_daemon.journal import writing

IDENTITY = Identity(writing.BOOT, "0123456789abcdef", bytes(32), our_schema())
RECORDED_IN = (geometry, plugin, policy, commands, events, records, service)


def write(folder: Path, seeds: list[int]) -> dict[str, str]:
    """Digest of each journal."""
    made = {}
    for seed in seeds:
        with mock.patch.object(writing, "new_identity", return_value=IDENTITY):
            written = bytes(writing.written(seed).storage.bytes)
        (folder / f"{seed}.journal").write_bytes(written)
        made[str(seed)] = hashlib.sha256(written).hexdigest()
    return made


def replay(folder: Path, seeds: list[int]) -> dict[str, str]:
    """Digest of each book."""
    found = {}
    for seed in seeds:
        storage = writing.Bytes(0)
        storage.bytes = bytearray((folder / f"{seed}.journal").read_bytes())
        replayed = writing.reopened(storage)
        found[str(seed)] = hashlib.sha256(orjson.dumps(snapshot(replayed.book))).hexdigest()
    return found


def hints() -> dict[str, str]:
    """Of every record: its fields in order, with their resolved hints."""
    kinds = {kind for module in RECORDED_IN for kind in vars(module).values() if isinstance(kind, type)}
    found = {}
    for kind in kinds:
        if dataclasses.is_dataclass(kind):
            resolved = own_hints(kind)
            found[f"{kind.__module__}.{kind.__qualname__}"] = str([(n, str(resolved[n])) for n in field_names(kind)])
    return found


def main() -> None:
    do, folder, *seeds = sys.argv[1:]
    said: dict[str, object] = {"compiled": compiled()}
    if do == "schema":
        said |= {"schema": schema(), "journal": our_schema(), "hints": hints()}
    else:
        said[do] = {"write": write, "replay": replay}[do](Path(folder), [int(seed) for seed in seeds])
    print(json.dumps(said))


if __name__ == "__main__":
    main()
