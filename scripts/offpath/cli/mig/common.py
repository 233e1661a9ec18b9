"""What the commands of `offpath mig` share: flags, migd's client, and what a layout file means for the GPUs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass

from offpath.host_helper.migd import protocol
from offpath.host_helper.migd.client import MigdClient
from offpath.host_helper.migd.errors import LayoutImpossible
from offpath.host_helper.migd.layout_file import LayoutEntry, read_layout
from offpath.host_helper.migd.serve import SOCKET, runtime_directory


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU that a layout has an entry for."""

    found: protocol.Gpu
    wanted: LayoutEntry


def add_arguments(parser: argparse.ArgumentParser, *, layout: bool = True) -> None:
    """The flags of each command."""
    if layout:
        parser.add_argument("-f", "--config-file", required=True, metavar="FILE", help="layout file of mig-parted")
        parser.add_argument("-c", "--selected-config", metavar="LABEL", help="the layout, if the file has several")
    parser.add_argument("--runtime-dir", metavar="DIR", help="directory of migd's socket")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def client(arguments: argparse.Namespace) -> MigdClient:
    """A client of the running migd."""
    return MigdClient(os.path.join(runtime_directory(arguments.runtime_dir), SOCKET))


def gpus(migd: MigdClient) -> Iterator[protocol.Gpu]:
    """Every GPU that migd manages, in NVML's order."""
    for line in migd.gpus().gpus:
        yield migd.describe(line.uuid)


def targets(migd: MigdClient, arguments: argparse.Namespace) -> list[Target]:
    """The GPUs that the chosen layout has an entry for, each with its last one. Raises: LayoutInvalid;
    LayoutImpossible: there is none; errors of `MigdClient.call`."""
    layout = read_layout(arguments.config_file, arguments.selected_config)
    found = []
    for gpu in gpus(migd):
        wanted = layout.of(gpu.gpu.index, gpu.gpu.pci_device_id)
        if wanted is not None:
            found.append(Target(gpu, wanted))
    if not found:
        raise LayoutImpossible(f"layout {layout.label!r} has no entry for a GPU that migd manages")
    return found


def place(line: protocol.InstanceLine) -> str:
    """An instance as text."""
    return f"{line.profile} at {line.start}"
