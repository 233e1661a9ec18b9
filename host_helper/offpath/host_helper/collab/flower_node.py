"""A node of Flower reports its attributes: one line in the ClientApp, ``describe(app)``. Light, because Flower starts a
process for each message."""

from __future__ import annotations

from typing import Final

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

ACTION: Final = "offpath"
"""Of the query for a node's attributes."""
NUMBERS: Final = "numbers"
LABELS: Final = "labels"


def describe(app: ClientApp) -> None:
    """The app reports the whole numbers of its node's ``--node-config``, and its texts as labels ``key.value``."""

    @app.query(ACTION)
    def answer(message: Message, context: Context) -> Message:
        config = context.node_config
        numbers = {key: value for key, value in config.items() if type(value) is int and value >= 0}
        labels = [f"{key}.{value}" for key, value in config.items() if isinstance(value, str)]
        content = RecordDict({NUMBERS: MetricRecord(numbers), LABELS: ConfigRecord({LABELS: labels})})
        return Message(content, reply_to=message)
