"""`Helper`: register kernels, then `run` the helper on this host."""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from offpath.bindings.doca.lane import HostDevice
from offpath.bindings.errors import NoGpu, OptionRefused
from offpath.bindings.loopback.gpu import DEFAULT_SLICE_BYTES
from offpath.bindings.ports import Gpu, HostConnector
from offpath.bindings.runtime import INA_FOLDER, runtime_directory
from offpath.bindings.verbs.devices import choose
from offpath.host_helper.channels import host_channel
from offpath.host_helper.demands import check_models
from offpath.host_helper.forks import python_threads
from offpath.host_helper.gpus import NO_GPU_ADVICE, emulated_gpus, find_gpus
from offpath.host_helper.kernels import Kernel, KernelTable, LaneContext, current_lane
from offpath.host_helper.migd.gpu import MigGpu
from offpath.host_helper.migd.watch import MigdWatch
from offpath.host_helper.mps import CudaGpu, open_mps
from offpath.host_helper.reload import Reloader
from offpath.host_helper.reload_socket import listen
from offpath.host_helper.rightsizing import read_demands, right_sized
from offpath.host_helper.supervisor import Supervisor

logger = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
__all__ = ["Helper", "LaneContext", "current_lane", "host_channel"]


def _warn_of_threads() -> None:
    """Workers are forked from this process, and have none of its threads."""
    if named := python_threads():
        logger.warning(
            "the workers, which are forked from this process, will not have its threads: %s; start them under "
            "@helper.lane_opened (a ThreadPoolExecutor begins anew in each worker)",
            ", ".join(named),
        )
    if (others := len(os.listdir("/proc/self/task")) - 1 - len(named)) > 0:
        logger.warning(
            "%d further threads run already (often a BLAS pool: set OPENBLAS_NUM_THREADS=1); workers are forked from "
            "here",
            others,
        )


class Helper(KernelTable):
    """The helper of one host: kernels by decorator (`KernelTable.kernel`), then `run`."""

    def run(
        self,
        channel: str | HostConnector | None = None,
        *,
        name: str = "",
        gpus: Sequence[Gpu] | str = "auto",
        migd: str = "",
        mps: str = "off",
        demands: str = "",
        emulate: Sequence[str] = (),
        slice_bytes: int = DEFAULT_SLICE_BYTES,
        delayed_visibility: bool = False,
        break_scrub: bool = False,
        realtime: bool = False,
        rdma_device: str | None = None,
        rdma_netdev: str | None = None,
        rdma_near: str | None = None,
        doca_device: str = "",
        doca_path: str = "",
        state_files: str | None = None,
        reload: Callable[[], KernelTable] | None = None,
        runtime_dir: str | None = None,
        log_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Serve the daemon until SIGTERM or SIGINT. Call it from the main thread, before threads exist: it forks.

        Args:
            channel: path of the daemon's host socket, or a connector (`host_channel`); default: the socket in the
                runtime directory.
            name: identifies this helper among those of the daemon: 1 to 32 letters, digits and ._-, starting with a
                letter or digit. Default: ``$OFFPATH_HELPER_NAME``, else "helper". A daemon accepts one helper of each
                name.
            gpus: GPU ports to offer, or where to find NVIDIA GPUs: "migd", "cuda", or "auto", the first of both that is
                there (`offpath.host_helper.gpus.KINDS`).
            migd: path of offpath-migd's socket. Default: in ``$OFFPATH_MIGD_DIR``, else in /run/offpath-migd.
            mps: whether the lanes of a lease on an NVIDIA GPU share it by MPS, each with the percentage of its
                multiprocessors that its kernels need, or take turns: "on", "off", or "auto", on where the control
                program is found (docs/gpu.md).
            demands: a file of measured demands, for kernels that are registered with ``demand="auto"``
                (`offpath kernel profile`).
            emulate: models of GPUs to emulate in the place of ``gpus``, in host memory and on this host's CPU. Log
                lines, `offpath top`, metrics and requesters are told that these GPUs are emulated.
            slice_bytes: scale of an emulated GPU: bytes per memory slice.
            delayed_visibility: emulate a GPU whose peer writes need `acquire`.
            realtime: run supervisor and workers SCHED_RR, so that other load on the host's cores does not delay
                launches. Needs CAP_SYS_NICE or an RTPRIO limit; without them a warning is logged. For kernels with a
                short CPU part, because they preempt everything else.
            rdma_device, rdma_netdev, rdma_near: the RDMA port by which a daemon that copies by RDMA reaches the lanes:
                of this device, of this network interface, nearest to this PCI address. Default: the only port.
            doca_device: the device by which a daemon that copies by DOCA reaches the lanes: its PCI address or its
                name. Default: the only one that can export.
            doca_path: the folder of DOCA's libraries. Default: ``$OFFPATH_DOCA_PATH``, else where its packages install
                them.
            state_files: the folder with the state files of ranks that share aggregation trees. Default: ``ina`` beside
                the daemon's host socket, or in the runtime directory. Empty: ranks are not watched.
            reload: loads this helper's kernels anew, for SIGHUP and `offpath helper reload`. None: it never reloads.
            runtime_dir: where the socket for reloads is made. Default: ``$RUNTIME_DIRECTORY``, else this user's own.
            log_line: receives a line with the kernels and GPUs that are served, then one whenever the helper joins a
                daemon, loses it, or cannot join.
            break_scrub: a planted fault: workers confirm scrubs that they did not do.

        Raises: NoGpu: this machine has no GPU that can be used, and ``emulate`` is empty. MpsMissing: ``mps`` is "on",
        and the control program is not found. OptionRefused: the name. ValueError: no kernel is registered, one names an
        unknown GPU model, or one has ``demand="auto"`` and was not measured.
        """
        name = helper_name(name)
        if not self.kernels:
            raise ValueError("a helper without kernels serves nothing: register one with @helper.kernel(...)")
        if realtime:
            try:
                os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
            except PermissionError:
                logger.warning("no permission for SCHED_RR (CAP_SYS_NICE or LimitRTPRIO); running at normal priority")
        _warn_of_threads()
        with ExitStack() as stack:
            # First: control daemons that a killed helper left keep their instances in use.
            has_cuda = isinstance(gpus, str) or any(isinstance(gpu, CudaGpu) for gpu in gpus)
            daemons = open_mps(mps, is_cuda=has_cuda and not emulate)
            if daemons is not None:
                stack.callback(daemons.close)
            offered: Sequence[Gpu]
            if emulate:
                offered = emulated_gpus(emulate, slice_bytes=slice_bytes, delayed_visibility=delayed_visibility)
            else:
                offered = find_gpus(gpus, migd) if isinstance(gpus, str) else gpus
            for gpu in offered:
                stack.callback(gpu.close)
            migd_client = next((gpu.client for gpu in offered if isinstance(gpu, MigGpu)), None)
            watch = MigdWatch(migd_client) if migd_client is not None else None
            if watch is not None:
                stack.callback(watch.close)
            if not offered:
                raise NoGpu(f"no GPU to serve kernels on: none was given. {NO_GPU_ADVICE}")

            def prepared(kernels: Mapping[str, Kernel]) -> dict[str, Kernel]:
                sized = right_sized(kernels, offered, read_demands(demands) if demands else None)
                check_models(sized.values(), offered)
                return sized

            self.kernels = prepared(self.kernels)
            reloader = None
            if reload is not None:
                listener = listen(name, runtime_dir)
                reloader = Reloader(self, reload, prepared, listener=listener, log_line=log_line)
            connector = host_channel(path=channel) if channel is None or isinstance(channel, str) else channel
            supervisor = Supervisor(
                name, connector, offered, self,
                break_scrub=break_scrub, rdma=partial(choose, device=rdma_device, netdev=rdma_netdev, near=rdma_near),
                doca=HostDevice(doca_device, doca_path),
                state_files=_default_folder(channel) if state_files is None else state_files,
                mps=daemons, migd=watch, reloader=reloader, log_line=log_line,
            )  # fmt: skip
            log_line(self._offer(offered))
            if emulated := ", ".join(gpu.uuid for gpu in offered if gpu.is_emulated):
                log_line(f"EMULATED: {emulated}: this host's CPU computes, and no GPU")
            if mps != "off":
                log_line(f"MPS: {'a control daemon for each lease' if daemons is not None else 'none on this machine'}")
            for number in (signal.SIGTERM, signal.SIGINT):
                stack.callback(signal.signal, number, signal.signal(number, lambda *_: supervisor.stop()))
            if reloader is not None:
                former = signal.signal(signal.SIGHUP, lambda *_: supervisor.reload())
                stack.callback(signal.signal, signal.SIGHUP, former)
            supervisor.run()

    def _offer(self, gpus: Sequence[Gpu]) -> str:
        """The kernels and the GPUs, in one line."""
        served = ", ".join(f"{kernel.name} ({kernel.needs_text()})" for kernel in self.kernels.values())
        emulated = ", EMULATED"
        on = ", ".join(f"{gpu.uuid} ({gpu.model.name}{emulated if gpu.is_emulated else ''})" for gpu in gpus)
        return f"serves {served} on {on}"


def _default_folder(channel: str | HostConnector | None) -> str:
    return os.path.join(os.path.dirname(channel) if isinstance(channel, str) else runtime_directory(), INA_FOLDER)


def helper_name(given: str, environment: Mapping[str, str] = os.environ) -> str:
    """The helper's name: ``given``, or that of the environment, or the default. Raises: OptionRefused."""
    name = given or environment.get("OFFPATH_HELPER_NAME", "") or "helper"
    if not _NAME.fullmatch(name):
        raise OptionRefused(
            f"helper name {name[:64]!r}: 1 to 32 letters, digits and ._-, starting with a letter or digit"
        )
    return name
