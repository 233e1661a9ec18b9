"""`offpath mig show`: the GPUs that migd manages, their instances, and whose they are."""

from __future__ import annotations

import argparse

from offpath.cli.admin_client import print_json, table
from offpath.cli.mig import common
from offpath.host_helper.migd import protocol

_HEAD = ("gpu", "instance", "profile", "start", "owner", "uid", "state", "pids", "uuid")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    common.add_arguments(parser, layout=False)
    parser.add_argument("--profiles", action="store_true", help="list each GPU's profiles, too")


def main(arguments: argparse.Namespace) -> int:
    """Print."""
    with common.client(arguments) as migd:
        driver = migd.gpus().driver
        found = list(common.gpus(migd))
    if arguments.json:
        shown = [each.model_dump(mode="json", exclude={"kind"}) for each in found]
        print_json({"driver": driver, "gpus": [{**each.pop("gpu"), **each} for each in shown]})
        return 0
    print(f"driver {driver}")
    for gpu in found:
        line = gpu.gpu
        problem = f"; {protocol.CODES[line.problem][0]}" if line.problem in protocol.CODES else ""
        print(f"{line.index}: {line.uuid} {line.name}, {line.pci}, {line.memory_mib} MiB, "
              f"mode {line.mode}, MIG {line.mig}{problem}")  # fmt: skip
        if arguments.profiles:
            print(_profiles(gpu))
    rows = [_row(gpu.gpu, line) for gpu in found for line in gpu.instances]
    print(table(rows, _HEAD) if rows else "no instances")
    return 0


def _row(gpu: protocol.GpuLine, line: protocol.InstanceLine) -> tuple[object, ...]:
    state = "quarantined" if line.quarantined else "unheld" if line.unheld_ms >= 0 else "-"
    uid = line.lease_uid if line.lease_uid >= 0 else "-"
    number = line.gpu_instance if line.gpu_instance >= 0 else "-"
    pids = ",".join(map(str, line.pids)) or "-"
    return gpu.index, number, line.profile, line.start, line.owner, uid, state, pids, line.uuid or "-"


def _profiles(gpu: protocol.Gpu) -> str:
    head = ("profile", "compute", "memory", "SMs", "MiB", "most", "starts")
    rows = [
        (p.name, p.compute_slices, p.memory_slices, p.multiprocessors, p.memory_mib, p.max_instances,
         ",".join(map(str, p.starts)))
        for p in gpu.profiles
    ]  # fmt: skip
    return table(rows, head) if rows else "no profiles"
