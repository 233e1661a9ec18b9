"""The DDP hook on models as users have them: sparse gradients, checkpoints, copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ...support.optional import TORCH
from ...support.processes import BOUND_S, Process

pytest.importorskip("torch", reason=TORCH)


def ranks(folder: Path, hook: str) -> list[dict[str, Any]]:
    """What two ranks say."""
    store = folder / f"store-{hook}"
    started = [Process(f"{hook}{n}", folder, "hook_main.py", str(n), "2", str(store), hook) for n in range(2)]
    try:
        return [process.hear(2 * BOUND_S) for process in started]
    finally:
        for process in started:
            process.kill()


def test_sparse_gradients_give_the_weights_of_gloo_and_the_model_travels(tmp_path: Path) -> None:
    plain, ours = ranks(tmp_path, "none"), ranks(tmp_path, "ours")
    assert [each["weights"] for each in ours] == [each["weights"] for each in plain]
    for each in ours:
        assert each["equal"]
        assert each["shared"], "a copy in this process has this runtime"
        assert "a runtime does not travel with a model" in each["absent"]


def test_a_model_with_another_hook_over_the_runtime_travels(tmp_path: Path) -> None:
    assert [each["equal"] for each in ranks(tmp_path, "fp16")] == [True, True]
