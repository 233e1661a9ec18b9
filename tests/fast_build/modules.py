"""The build's own modules: they are no part of the package, and the root is not on the path."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from ..support.sources import ROOT


def modules(name: str) -> Any:
    """The module ``build_fast.NAME``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(ROOT), *sys.path])
        return importlib.import_module(f"build_fast.{name}")
