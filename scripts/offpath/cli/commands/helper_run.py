"""`offpath helper run FILE`: serves the kernels that a Python file registers with its `helper`."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial

from offpath.bindings.loopback.gpu import DEFAULT_SLICE_BYTES
from offpath.bindings.runtime import HOST_SOCKET, ina_directory, local_socket
from offpath.cli.pin import pin
from offpath.host_helper.channels import KINDS, host_channel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("file", help="a Python file with a module-level `helper = Helper()`")
    parser.add_argument("--runtime-dir", metavar="DIR", help="where the daemon's sockets are")
    parser.add_argument("--name", metavar="NAME", default="", help="identifies this helper among those of the daemon, "
                        "which accepts one of each name (default: helper)")  # fmt: skip
    parser.add_argument("--gpus", choices=("auto", "migd", "cuda"), default="auto", help="where to find NVIDIA GPUs: "
                        "those of offpath-migd, which cuts MIG instances; what CUDA shows this user, whole; auto: "
                        "the first of both that is there")  # fmt: skip
    parser.add_argument("--migd", metavar="PATH", default="", help="socket of offpath-migd "
                        "(default: /run/offpath-migd/migd.sock)")  # fmt: skip
    parser.add_argument("--mps", choices=("auto", "on", "off"), default="off", help="whether the lanes of a lease "
                        "on an NVIDIA GPU share it by MPS; auto: where the control program is found "
                        "(default: off)")  # fmt: skip
    parser.add_argument("--demands", metavar="FILE", default="", help="measured demands of kernels with "
                        "demand=\"auto\", written by `offpath kernel profile --write`")  # fmt: skip
    parser.add_argument("--emulate", nargs="+", default=[], metavar="MODEL", help="models of GPUs to emulate instead, "
                        "e.g. A100-40GB: this host's CPU computes")  # fmt: skip
    parser.add_argument("--slice-bytes", type=int, default=DEFAULT_SLICE_BYTES, help="emulated bytes per memory slice")
    parser.add_argument("--delayed-visibility", action="store_true", help="emulate a GPU that needs acquire")
    rdma = "the RDMA port to reach lanes over, for a daemon with copy_engine verbs: "
    parser.add_argument("--rdma-device", metavar="NAME", help=rdma + "of this device")
    parser.add_argument("--rdma-netdev", metavar="NAME", help=rdma + "of this network interface")
    parser.add_argument("--rdma-near", metavar="ADDRESS", help=rdma + "nearest to this PCI address")
    parser.add_argument("--host-channel", choices=KINDS, help="how to connect to the daemon (default: unix)")
    zmq = "for the host channel zmq: "
    parser.add_argument("--daemon", metavar="ADDRESS", help=zmq + "the daemon, tcp://HOST:PORT or ipc://PATH")
    parser.add_argument("--key", metavar="FILE", help=zmq + "this host's secret key, mode 0600")
    parser.add_argument("--server-key", metavar="FILE", help=zmq + "the daemon's public key")
    doca = "for a daemon with copy_engine doca, or the host channel comch: "
    parser.add_argument("--comch-name", metavar="NAME", help="for the host channel comch: the daemon's "
                        "`doca.comch_name` (default: offpath)")  # fmt: skip
    parser.add_argument("--doca-device", metavar="NAME", default="", help=doca + "PCI address or name of the "
                        "host's function, by which lanes are reached")  # fmt: skip
    parser.add_argument("--doca-path", metavar="DIR", default="", help=doca + "the folder of DOCA's libraries "
                        "(default: OFFPATH_DOCA_PATH, else the default of its packages)")  # fmt: skip
    parser.add_argument("--realtime", action="store_true", help="run SCHED_RR: other host load delays no launch")
    parser.add_argument("--cpu", type=int, metavar="N", help="pin helper and workers to this core")


def main(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    pin(arguments.cpu)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before BLAS is loaded: no threads before a fork
    from offpath.host_helper.helper_file import load_helper, reload_helper  # late, because it imports numpy

    sys.argv = [arguments.file]  # the file's own, if it reads arguments
    helper = load_helper(arguments.file)
    # --runtime-dir does not choose it: the unit's command has that, and a drop-in sets the channel by environment.
    channel = arguments.host_channel or os.environ.get("OFFPATH_HELPER_HOST_CHANNEL") or "unix"
    helper.run(
        host_channel(
            channel,
            path=local_socket(HOST_SOCKET, arguments.runtime_dir) if channel == "unix" else None,
            daemon=arguments.daemon,
            key=arguments.key,
            server_key=arguments.server_key,
            comch_name=arguments.comch_name,
            doca_device=arguments.doca_device,
            doca_path=arguments.doca_path,
        ),
        name=arguments.name,
        gpus=arguments.gpus,
        migd=arguments.migd,
        mps=arguments.mps,
        demands=arguments.demands,
        emulate=arguments.emulate,
        slice_bytes=arguments.slice_bytes,
        delayed_visibility=arguments.delayed_visibility,
        realtime=arguments.realtime,
        rdma_device=arguments.rdma_device,
        rdma_netdev=arguments.rdma_netdev,
        rdma_near=arguments.rdma_near,
        doca_device=arguments.doca_device,
        doca_path=arguments.doca_path,
        state_files=ina_directory(arguments.runtime_dir),
        reload=partial(reload_helper, arguments.file),
        runtime_dir=arguments.runtime_dir,
        log_line=lambda line: print(f"offpath helper: {line}", file=sys.stderr, flush=True),
    )
    return 0
