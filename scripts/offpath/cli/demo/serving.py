"""The demo's helper process: three kernels over one model, on two emulated GPUs or what there is.

`python -m offpath.cli.demo.serving PLACE`; PLACE is the file that `offpath.cli.demo.place` writes.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offpath.bindings.ports import Gpu
from offpath.cli.demo import model
from offpath.cli.demo.isolation import LaneAudit
from offpath.cli.demo.place import Place
from offpath.cli.demo.samples import kernel_name
from offpath.cli.local.child import end_with_parent
from offpath.host_helper.helper import Helper
from offpath.host_helper.kernels import LaneContext


class Server:
    """The kernels; `audit` is set in each worker when its lane opens."""

    def __init__(self, place: Place, gpus: Sequence[Gpu]) -> None:
        self._tenants = tuple(place.tenants)
        self._gpus = gpus
        self._has_torch = place.gpus.kind == "cuda"
        self.audit: LaneAudit | None = None
        self.helper = Helper()
        self.helper.lane_opened(self._lane_opened)
        for demand, network in model.load(place.model).items():
            self._register(demand, network)

    def _lane_opened(self, lane: LaneContext) -> None:
        self.audit = LaneAudit(lane, self._tenants, self._gpus)

    def _register(self, demand: int, network: model.Network) -> None:
        if self._has_torch:
            self._register_torch(demand, network)
            return

        @self.helper.kernel(kernel_name(demand), demand=demand)
        def classify(images: model.Float, stamp: NDArray[np.uint8]) -> tuple[NDArray[Any], ...]:
            audit = self.audit
            assert audit is not None, "a worker serves no job before its lane has opened"
            started_ns = time.monotonic_ns()
            audit.check_owner(stamp)
            digits, scores = network.classify(images)
            audit.leave_mark()
            return digits, scores, audit.report(started_ns)

    def _register_torch(self, demand: int, network: model.Network) -> None:
        """The same network on the lane's GPU: images and weights are torch's tensors there."""
        from offpath.cli.demo.torch_model import TorchNetwork

        on_gpu = TorchNetwork(network)

        @self.helper.kernel(kernel_name(demand), demand=demand, tensors="torch")
        def classify(images: Any, stamp: Any) -> tuple[Any, ...]:
            audit = self.audit
            assert audit is not None, "a worker serves no job before its lane has opened"
            started_ns = time.monotonic_ns()
            audit.check_owner(stamp.cpu().numpy())
            digits, scores = on_gpu.classify(images)
            audit.leave_mark()
            return digits, scores, audit.report(started_ns)


def main(path: str) -> None:
    """Serve until SIGTERM."""
    end_with_parent()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    place = Place.read(path)
    gpus = place.gpus.find(place.directory)
    Server(place, gpus).helper.run(
        place.connector(), gpus=gpus, break_scrub=place.break_scrub,
        rdma_device=place.datapath.host_device or None, doca_path=place.datapath.doca_path,
        mps="on" if place.gpus.has_mps else "off",
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
