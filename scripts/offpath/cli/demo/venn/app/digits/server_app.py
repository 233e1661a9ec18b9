"""What a job does: federated averaging over the nodes that it gets. The line with ``shared`` is offpath's, all else is
Flower's own."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from offpath.host_helper.collab.flower import shared

from . import models, samples

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds; then the result, as one line of JSON."""
    config = context.run_config
    model, demand, seed = str(config["model"]), int(config["demand"]), int(config["seed"])
    least = {name: int(number) for name, number in (each.split("=") for each in str(config["least"]).split())}
    _await_start(str(config["result"]), str(config["start"]))
    began = time.time()
    grid = shared(grid, context, demand=demand, job=str(config["job"]), deadline_s=float(config["deadline-s"]),
                  requirement={"numbers": least}, rounds=int(config["rounds"]))  # fmt: skip
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=demand, min_available_nodes=demand)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(models.first(model, seed)),
                            num_rounds=int(config["rounds"]))  # fmt: skip
    images, labels = samples.held(str(config["data"]))
    accuracy = models.accuracy(model, result.arrays.to_numpy_ndarrays(), images, labels)
    found = {
        "job": config["job"],
        "accuracy": accuracy,
        "held": len(labels),
        "began": began,
        "ended": time.time(),
        "served": getattr(grid, "served", {}),
    }
    part = Path(str(config["result"])).with_suffix(".part")
    part.write_text(json.dumps(found))
    part.rename(str(config["result"]))


def _await_start(result: str, start: str) -> None:
    """Jobs begin together, however long their processes take to start. Tests kill the process of a job."""
    Path(result).with_suffix(".ready").write_text(str(os.getpid()))
    while start and not Path(start).exists():
        time.sleep(0.02)
