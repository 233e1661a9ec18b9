"""Tests of training: torch takes seconds to import, so only the test that uses it does, and never the collection."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from .optional import TORCH

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason=TORCH)
