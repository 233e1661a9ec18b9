"""Every function that is declared is called by a test of this folder: a declaration nobody called is a guess."""

from __future__ import annotations

from pathlib import Path

import pytest

from offpath.bindings.doca.load import FUNCTIONS

from ...support.doca import emulator
from .conftest import called


def test_every_declared_function_was_called(request: pytest.FixtureRequest) -> None:
    """Runs last in its folder; of a part of the folder it can say nothing."""
    emulator()  # what cannot run calls nothing
    folder = Path(__file__).parent
    files = {path.name for path in folder.glob("test_*.py")}
    collected = {item.path.name for item in request.session.items if item.path.parent == folder}
    option = request.config.option
    if option.keyword or option.markexpr or collected != files:
        pytest.skip("only a part of this folder ran")
    assert sorted(set(FUNCTIONS) - called) == []
