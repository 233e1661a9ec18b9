"""A client that adds one."""

from __future__ import annotations

from typing import Any

from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp


class Adder(NumPyClient):
    """Of one array."""

    def fit(self, parameters: Any, config: Any) -> Any:
        """See Flower."""
        return [each + 1 for each in parameters], 1, {}


def client(context: Context) -> Client:
    """See Flower."""
    return Adder().to_client()


app = ClientApp(client_fn=client)
