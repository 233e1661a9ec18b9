"""`offpath bench batching`: one block of each kernel on a real daemon."""

from __future__ import annotations

from offpath.cli.bench.batching import MAX_BATCH, Bench
from offpath.cli.bench.measure import Cores


def test_both_kernels_answer_every_request_and_one_of_them_in_batches() -> None:
    bench = Bench(Cores(None, None))
    try:
        alone, batched = bench.block("alone", 100), bench.block("batched", 200)
    finally:
        bench.close()
    assert (len(alone.latencies_ns), len(batched.latencies_ns)) == (100, 200)
    assert set(alone.rows) == {1}
    assert 1 < max(batched.rows) <= MAX_BATCH
