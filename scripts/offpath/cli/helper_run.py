"""`offpath helper run FILE`: serve the kernels that a Python file registers with its `helper`."""

from __future__ import annotations

import argparse
import os
import runpy

from offpath.bindings.errors import OffpathError
from offpath.bindings.loopback.gpu import DEFAULT_SLICE_BYTES
from offpath.bindings.runtime import HOST_SOCKET, INA_FOLDER, runtime_directory
from offpath.host_helper.channels import KINDS, host_channel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("file", help="a Python file with a module-level `helper = Helper()`")
    parser.add_argument("--runtime-dir", metavar="DIR", help="where the daemon's sockets are")
    parser.add_argument("--emulate", nargs="+", default=["A100-40GB"], metavar="MODEL", help="GPUs to emulate")
    parser.add_argument("--slice-bytes", type=int, default=DEFAULT_SLICE_BYTES, help="emulated bytes per memory slice")
    parser.add_argument("--delayed-visibility", action="store_true", help="emulate a GPU that needs acquire")
    rdma = "the RDMA port to reach lanes over, for a daemon with copy_engine verbs: "
    parser.add_argument("--rdma-device", metavar="NAME", help=rdma + "of this device")
    parser.add_argument("--rdma-netdev", metavar="NAME", help=rdma + "of this network interface")
    parser.add_argument("--rdma-near", metavar="ADDRESS", help=rdma + "nearest to this PCI address")
    parser.add_argument("--host-channel", choices=KINDS, help="how the daemon is reached (default: unix)")
    zmq = "for the host channel zmq: "
    parser.add_argument("--daemon", metavar="ADDRESS", help=zmq + "the daemon, tcp://HOST:PORT or ipc://PATH")
    parser.add_argument("--key", metavar="FILE", help=zmq + "our secret key, of mode 0600")
    parser.add_argument("--server-key", metavar="FILE", help=zmq + "the daemon's public key")
    doca = "for a daemon with copy_engine doca, or the host channel comch: "
    parser.add_argument("--comch-name", metavar="NAME", help="for the host channel comch: the daemon's "
                        "`doca.comch_name` (default: offpath)")  # fmt: skip
    parser.add_argument("--doca-device", metavar="NAME", default="", help=doca + "PCI address or name of the "
                        "host's function, by which lanes are reached")  # fmt: skip
    parser.add_argument("--doca-path", metavar="DIR", default="", help=doca + "the folder of DOCA's libraries "
                        "(default: OFFPATH_DOCA_PATH, else where its packages put them)")  # fmt: skip
    parser.add_argument("--realtime", action="store_true", help="run SCHED_RR: other host load delays no launch")
    parser.add_argument("--cpu", type=int, metavar="N", help="pin helper and workers to this core")


def main(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    if arguments.cpu is not None:
        os.sched_setaffinity(0, {arguments.cpu})
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # workers are forked: no BLAS threads before that
    from offpath.host_helper.helper import Helper  # numpy comes with it, after the line above

    helper = runpy.run_path(arguments.file).get("helper")
    if not isinstance(helper, Helper):
        raise OffpathError(f"{arguments.file} defines no `helper = Helper()`")
    unix = arguments.host_channel == "unix" or (arguments.host_channel is None and arguments.runtime_dir is not None)
    helper.run(
        host_channel(
            arguments.host_channel,
            path=os.path.join(runtime_directory(arguments.runtime_dir), HOST_SOCKET) if unix else None,
            daemon=arguments.daemon,
            key=arguments.key,
            server_key=arguments.server_key,
            comch_name=arguments.comch_name,
            doca_device=arguments.doca_device,
            doca_path=arguments.doca_path,
        ),
        emulate=arguments.emulate,
        slice_bytes=arguments.slice_bytes,
        delayed_visibility=arguments.delayed_visibility,
        realtime=arguments.realtime,
        rdma_device=arguments.rdma_device,
        rdma_netdev=arguments.rdma_netdev,
        rdma_near=arguments.rdma_near,
        doca_device=arguments.doca_device,
        doca_path=arguments.doca_path,
        pages=os.path.join(runtime_directory(arguments.runtime_dir), INA_FOLDER),
    )
    return 0
