"""What the commands of demonstrations have in common: a folder of their own, faults, the exit code."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from offpath.bindings.errors import OffpathError


def run(
    name: str, play: Callable[[str], dict[str, Any]], render: Callable[[dict[str, Any]], str], *, is_json: bool
) -> int:
    """Play in a folder, and print the report with the seconds that it took. ``play`` returns it, with ``ok`` and
    ``faults``. The folder stays, with its logs, if not all is well. 0: ``ok``; 1: not, and stderr has the faults.

    Raises: OffpathError: it could not be played to its end.
    """
    folder = tempfile.mkdtemp(prefix=f"offpath-{name}-")
    began = time.monotonic()
    is_ok = False
    try:
        made = play(folder)
        made["seconds"] = round(time.monotonic() - began, 1)
        is_ok = bool(made["ok"])
    except OffpathError as fault:
        raise OffpathError(f"demo {name}: {fault}") from None
    finally:
        if is_ok:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            say(name, f"logs are kept in {folder}")
    print(json.dumps(made) if is_json else render(made))
    for each in made["faults"]:
        print(f"demo {name}: FAILED: {each}", file=sys.stderr)
    return 0 if is_ok else 1


def say(name: str, text: str) -> None:
    """A line on stderr."""
    print(f"demo {name}: {text}", file=sys.stderr, flush=True)
