"""`offpath mig apply`: brings GPUs to a layout through migd, which records the instances as part of a layout.

All GPUs are checked before the first is changed. Leases are never destroyed. MIG mode is never changed.
"""

from __future__ import annotations

import argparse

from offpath.cli.admin_client import print_json
from offpath.cli.mig import common
from offpath.cli.mig.plan import as_data, as_text
from offpath.host_helper.migd import protocol
from offpath.host_helper.migd.client import MigdClient, new_handle
from offpath.host_helper.migd.errors import LayoutImpossible
from offpath.host_helper.migd.layout_plan import GpuPlan, plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    common.add_arguments(parser)
    parser.add_argument("--replace-foreign", action="store_true", help="destroy instances that offpath did not create, "
                        "too")  # fmt: skip


def main(arguments: argparse.Namespace) -> int:
    """Check, change, print what was done."""
    with common.client(arguments) as migd:
        plans = [plan(each.found, each.wanted) for each in common.targets(migd, arguments)]
        for each in plans:
            _require_free(each, replace_foreign=arguments.replace_foreign)
        for each in plans:
            _apply(migd, each)
    if arguments.json:
        print_json([as_data(each) for each in plans])
    else:
        print("\n".join(line for each in plans for line in as_text(each)))
        print("MIG configuration applied successfully")
    return 0


def _require_free(found: GpuPlan, *, replace_foreign: bool) -> None:
    """Raises: LayoutImpossible: the GPU would lose a lease, or a foreign instance without an order to."""
    if leased := [line for line in found.destroy if line.owner == "lease" or line.lease_uid >= 0]:
        raise LayoutImpossible(
            f"{found.gpu.uuid}: {', '.join(map(common.place, leased))} is leased: drain the helper first "
            "(`offpath daemon drain`)"
        )
    foreign = [line for line in found.destroy if line.owner == "foreign"]
    if foreign and not replace_foreign:
        raise LayoutImpossible(
            f"{found.gpu.uuid}: {', '.join(map(common.place, foreign))} was not created by offpath: "
            "--replace-foreign destroys it"
        )


def _apply(migd: MigdClient, found: GpuPlan) -> None:
    for line in found.destroy:
        remove = protocol.Remove(
            gpu=found.gpu.uuid, gpu_instance=line.gpu_instance, profile=line.profile, start=line.start,
            foreign=line.owner == "foreign",
        )  # fmt: skip
        migd.call(remove, protocol.Done)
    for profile, start in found.create:
        lay = protocol.Lay(handle=new_handle(), gpu=found.gpu.uuid, profile=profile, start=start)
        migd.call(lay, protocol.Created)
