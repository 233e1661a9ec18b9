"""Host channel `zmq`: ZeroMQ with CURVE and an allow-list. Only `library` imports pyzmq; `keys` does not."""
