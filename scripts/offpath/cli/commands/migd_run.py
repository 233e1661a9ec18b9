"""`offpath migd run`: serves MIG instances of this host's GPUs to helpers, the only process that talks to NVML."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from offpath.bindings.errors import OptionRefused


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--config", metavar="FILE", help="TOML configuration (docs/gpu.md); flags replace its keys")
    parser.add_argument("--gpu", action="append", metavar="GPU=MODE", help="a GPU by UUID or PCI address, or all, and "
                        "its mode: mig, static or whole; repeatable (default: all=mig)")  # fmt: skip
    parser.add_argument("--uid", action="append", metavar="USER", help="a user that may hold instances; repeatable")
    parser.add_argument("--hold-ms", type=int, metavar="N", help="how long a lease without a connection is kept")
    parser.add_argument("--destroy-wait-ms", type=int, metavar="N", help="how long destroying an instance in use is "
                        "repeated")  # fmt: skip
    parser.add_argument("--runtime-dir", metavar="DIR", help="directory of socket and ledger, on a tmpfs "
                        "(default: OFFPATH_MIGD_DIR, else /run/offpath-migd)")  # fmt: skip
    parser.add_argument("--gpu-path", metavar="DIR", default="", help="the folder of libnvidia-ml.so.1 "
                        "(default: OFFPATH_GPU_PATH, else the system's)")  # fmt: skip


def main(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Exit code 78 (EX_CONFIG): the configuration has faults."""
    from offpath.host_helper.migd.config import load_config
    from offpath.host_helper.migd.serve import run, runtime_directory

    overrides: dict[str, Any] = {
        "gpus": dict(_gpu(text) for text in arguments.gpu) if arguments.gpu else None,
        "uids": [int(user) if user.isdecimal() and len(user) <= 10 else user for user in arguments.uid or ()] or None,
        "hold_ms": arguments.hold_ms,
        "destroy_wait_ms": arguments.destroy_wait_ms,
    }
    config = load_config(arguments.config, {key: value for key, value in overrides.items() if value is not None})
    run(
        config,
        runtime_directory(arguments.runtime_dir),
        lambda path: print(f"offpath-migd ready at {path}", file=sys.stderr, flush=True),
        gpu_path=arguments.gpu_path,
    )
    return 0


def _gpu(text: str) -> tuple[str, str]:
    key, equals, mode = text.rpartition("=")
    if not equals or not key:
        raise OptionRefused(f"--gpu {text}: want GPU=MODE, e.g. all=mig")
    return key, mode
