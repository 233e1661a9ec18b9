"""`offpath job explain NAME`: why a training job has the tree that it has, or none."""

from __future__ import annotations

import argparse

from offpath.bindings.wire import ina_admin
from offpath.cli import ask, ask_controller


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    ask_controller.add_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="the job's")


def main(arguments: argparse.Namespace) -> int:
    """Print the reasons."""
    asked = ask.asked(ina_admin.ExplainRequest, job=arguments.name)
    with ask_controller.client(arguments.runtime_dir) as client:
        found = client.ask(asked, ina_admin.InaExplanation)
    if arguments.json:
        ask.print_json(found)
        return 0
    print(ask_controller.job_text(found.job))
    print(f"  {found.where}")
    for reason in found.reasons:
        print(f"  - {reason}")
    return 0
