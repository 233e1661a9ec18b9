"""Federated averaging of the older API, over the nodes that the controller lends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp

from offpath.host_helper.collab.flower_clients import shared_clients


class Noting(FedAvg):
    """Writes each round's value and clients."""

    def __init__(self, result: str, **more: Any) -> None:
        super().__init__(**more)
        self._result, self._rounds = Path(result), list[Any]()

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """See Flower."""
        found, metrics = super().aggregate_fit(server_round, results, failures)
        value = float(parameters_to_ndarrays(found)[0][0]) if found is not None else None
        self._rounds.append({"value": value, "clients": sorted(int(each.cid) for each, _ in results)})
        self._result.with_suffix(".part").write_text(json.dumps(self._rounds))
        return found, metrics


def server(context: Context) -> ServerAppComponents:
    """See Flower."""
    config = context.run_config
    demand = int(config["demand"])
    strategy = Noting(
        str(config["result"]), fraction_fit=0.01, min_fit_clients=demand, min_available_clients=demand,
        fraction_evaluate=0.0, initial_parameters=ndarrays_to_parameters([np.zeros(1)]),
    )  # fmt: skip
    return ServerAppComponents(
        strategy=strategy, config=ServerConfig(num_rounds=int(config["rounds"])),
        client_manager=shared_clients(context, job=str(config["job"]), deadline_s=120.0),
    )  # fmt: skip


app = ServerApp(server_fn=server)
