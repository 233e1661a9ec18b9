"""The line that counts what was skipped."""

from __future__ import annotations

from .skips import told


def test_skips_are_counted_by_what_is_missing_most_first() -> None:
    reasons = [
        "torch is not installed: OFFPATH_TORCH=cuda takes the CUDA build",
        "needs a C compiler: cc, and Python's headers",
        "needs a C compiler: this Python has no stable ABI",
        "no RDMA device",
    ]  # fmt: skip
    assert told(reasons) == "skipped: 2 needs a C compiler · 1 no RDMA device · 1 torch is not installed"


def test_a_run_without_skips_has_no_line() -> None:
    assert told([]) == ""
