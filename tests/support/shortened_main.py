"""MODULE ARGUMENTS…: runs the module as a program, with the limits in `limits.LIMITS`."""

from __future__ import annotations

import runpy
import sys

from limits import shorten_limits  # the script's own folder is first on sys.path

shorten_limits()
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
