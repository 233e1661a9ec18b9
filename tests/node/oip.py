"""A client of the gateway with the standard library alone: TOKEN_FILE. Waits for the model `twice`, then runs it, by
JSON, short and long, and by shared memory of this user."""

from __future__ import annotations

import json
import os
import struct
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

TOKEN = Path(sys.argv[1]).read_text().strip()
VALUES = (1.0, 2.0, 4.0)
BOUND_S = 120.0


def ask(path: str, body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:8000{path}", None if body is None else json.dumps(body).encode()
    )
    request.add_header("Authorization", f"Bearer {TOKEN}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def is_there() -> bool:
    try:
        ask("/v2/models/twice/ready")
    except (OSError, urllib.error.HTTPError):
        return False
    return True


def main() -> None:
    end_s = time.monotonic() + BOUND_S
    while not is_there():
        assert time.monotonic() < end_s, "no model"
        time.sleep(0.5)
    tensor = {"name": "values", "datatype": "FP64", "shape": [3], "data": VALUES}
    (output,) = ask("/v2/models/twice/infer", {"inputs": [tensor]})["outputs"]
    assert output["data"] == [2.0, 4.0, 8.0], output
    many = [float(n) for n in range(4_000)]  # the gateway reads them in another process
    (output,) = ask("/v2/models/twice/infer", {"inputs": [{**tensor, "shape": [len(many)], "data": many}]})["outputs"]
    assert output["data"] == [2 * each for each in many]
    place = Path(f"/dev/shm/offpath-oip-{os.getpid()}")
    place.touch(0o600)
    try:
        place.write_bytes(struct.pack("3d", *VALUES) + bytes(24))
        ask("/v2/systemsharedmemory/region/r/register", {"key": f"/{place.name}", "offset": 0, "byte_size": 48})
        region = {"shared_memory_region": "r", "shared_memory_byte_size": 24}
        given = {**tensor, "parameters": region}
        del given["data"]
        wanted = {"name": "doubled", "parameters": {**region, "shared_memory_offset": 24}}
        ask("/v2/models/twice/infer", {"inputs": [given], "outputs": [wanted]})
        assert struct.unpack("3d", place.read_bytes()[24:]) == (2.0, 4.0, 8.0)
        ask("/v2/systemsharedmemory/unregister", {})
    finally:
        place.unlink()
    print("by JSON and by shared memory")


if __name__ == "__main__":
    main()
