"""What a node does: it trains on its digits, and takes as long as a device of its speed would (EMULATED)."""

from __future__ import annotations

import time
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from offpath.host_helper.collab.flower_node import describe

from . import models, samples

EPOCHS = 6
app = ClientApp()
describe(app)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Some epochs on the node's part of the digits."""
    config, node = context.run_config, context.node_config
    began = time.monotonic()
    images, labels = samples.part(str(config["data"]), int(node["part"]), int(node["parts"]))
    arrays = message.content.array_records["arrays"].to_numpy_ndarrays()
    seed = int(config["seed"]) + int(node["part"])
    arrays = models.trained(str(config["model"]), arrays, images, labels, EPOCHS, seed)
    time.sleep(max(0.0, int(config["work-ms"]) / 1e3 - (time.monotonic() - began)))
    if config["trace"]:
        with open(Path(str(config["trace"])) / str(node["part"]), "a", encoding="ascii") as file:
            file.write(f"{config['job']} {began} {time.monotonic()}\n")
    metrics = MetricRecord({"num-examples": len(images), "part": int(node["part"])})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
    return Message(content, reply_to=message)
