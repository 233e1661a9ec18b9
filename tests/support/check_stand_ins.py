"""Checks of `offpath gpu check` that end in all the ways a check can, for tests of what runs them."""

from __future__ import annotations

import os
import sys
import time

from offpath.cli.bench.gpu.setting import Setting
from offpath.cli.gpu_check.figures import Figures, NotPossible


def hang(setting: Setting, figures: Figures) -> None:
    """With a child that would live on."""
    if (child := os.fork()) == 0:
        time.sleep(600)
        os._exit(0)
    figures.add("child", child)
    time.sleep(600)


def crash(setting: Setting, figures: Figures) -> None:
    figures.add("before", 2, "s")
    print("last words", file=sys.stderr, flush=True)
    os.abort()


def fail(setting: Setting, figures: Figures) -> None:
    figures.expect("water is dry", False, "it is wet")
    figures.expect("fire is hot", True)


def refuse(setting: Setting, figures: Figures) -> None:
    raise NotPossible("no MPS here")


def stumble(setting: Setting, figures: Figures) -> None:
    figures.attempt("a part", os.abort)
    figures.add("after", 1)
