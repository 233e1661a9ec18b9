"""`offpath` in the wheel `offpath-host`: only the commands of hosts."""

from __future__ import annotations

import sys
from typing import Final

from offpath.cli import main as cli

COMMANDS: Final = {
    ("helper", "run"): cli.COMMANDS["helper", "run"],
    ("helper", "reload"): cli.COMMANDS["helper", "reload"],
    ("kernel", "profile"): cli.COMMANDS["kernel", "profile"],
    ("gateway", "run"): cli.COMMANDS["gateway", "run"],
    ("migd", "run"): cli.COMMANDS["migd", "run"],
    ("mig", "show"): cli.COMMANDS["mig", "show"],
    ("mig", "plan"): cli.COMMANDS["mig", "plan"],
    ("mig", "assert"): cli.COMMANDS["mig", "assert"],
    ("mig", "apply"): cli.COMMANDS["mig", "apply"],
    ("keys",): cli.COMMANDS["keys",],
    ("doctor",): ("commands.host_doctor", "check this host for a helper and print fixes"),
    ("completion",): cli.COMMANDS["completion",],
}


def main() -> int:
    """As `offpath.cli.main.main`."""
    return cli.main(commands=COMMANDS)


if __name__ == "__main__":
    sys.exit(main())
