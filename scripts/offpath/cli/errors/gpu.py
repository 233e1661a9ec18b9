"""Codes of `offpath-migd`, and the exceptions of NVML and of MIG layouts."""

from __future__ import annotations

from typing import Final

from offpath.cli.errors.registry import entries
from offpath.host_helper.migd.protocol import CODES

FAMILIES: Final = {"migd": "Refusals of `offpath-migd`, as the helper and `offpath mig` report them."}
ENTRIES: Final = (
    *entries("migd", *((code, cause, fix) for code, (cause, fix) in CODES.items())),
    *entries(
        "exception",
        ("DriverMissing", "no NVIDIA kernel driver is loaded", "load it; `nvidia-smi` must list the GPUs"),
        (
            "DriverMismatch",
            "the NVIDIA kernel driver and its libraries are of different releases",
            "reload the kernel modules, or restart the machine",
        ),
        ("NvmlError", "an NVML call failed", "its text has NVML's code and where to look"),
        (
            "NvmlMissing",
            "nvidia-ml-py or libnvidia-ml.so.1 cannot be loaded",
            'pip install "offpath[gpu]"; install the NVIDIA driver; `OFFPATH_GPU_PATH` names another folder',
        ),
        (
            "NvmlDenied",
            "migd lacks the permission for an NVML call, or a device node",
            "it must be able to open /dev/nvidia-caps/nvidia-cap1; see the unit's `DeviceAllow=`",
        ),
        (
            "InstanceInUse",
            "a process, an export or a monitoring agent holds a MIG instance",
            "end the processes named; restart the agent; migd keeps the instance quarantined until then",
        ),
        (
            "MigModeUnusable",
            "a GPU's MIG mode is not the configured one, or a change of it is pending",
            "`nvidia-smi -i GPU -mig 0|1` and a reset of the GPU, or another mode in migd's configuration",
        ),
        ("MigdRefused", "migd refused a request; see its code", "see migd's codes"),
        (
            "MigdUnreachable",
            "no migd listens on the socket, or it ended during the request",
            "check that offpath-migd.service runs, and that `--runtime-dir` is its directory",
        ),
        (
            "MigdConfigInvalid",
            "migd's file or flags cannot be used; it exits with 78, and systemd does not start it again",
            "mend what its text lists; `systemctl start offpath-migd.service`",
        ),
        (
            "GatewayConfigInvalid",
            "the gateway's file cannot be used, or names a token that cannot; it exits with 78",
            "mend what its text lists; docs/gateway.md",
        ),
        ("GatewayMissing", "a package that the gateway needs is not installed", 'pip install "offpath[gateway]"'),
        ("NodeUnusable", "a capability node of an instance cannot be made", "its text names the file"),
        ("LayoutInvalid", "a MIG layout file breaks a rule of its format", "its text names the place in the file"),
        (
            "LayoutImpossible",
            "a layout does not fit the GPU, or the GPU has leased or foreign instances",
            "its text names them; `offpath mig plan` shows what would be changed",
        ),
    ),
)  # fmt: skip
