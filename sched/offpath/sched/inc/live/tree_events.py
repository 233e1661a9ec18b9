"""Events of the book about the tree of a composite (`tree_hire`), from replies of the INA controller.

Each may be repeated.
"""

from __future__ import annotations

from dataclasses import replace

from offpath.sched.inc.live.book import Book
from offpath.sched.inc.live.records import Command, Save


def confirmed(book: Book, name: str, composite: str, environment: dict[str, str]) -> list[Command]:
    """The controller has the job of the tree. ``environment``: what the ranks need to use it."""
    request = book.requests.get(name)
    tree = request.trees.get(composite) if request is not None else None
    if request is None or tree is None or tree.environment == environment:
        return []
    request.trees[composite] = replace(tree, environment=environment)
    request.note(f"{composite}: its tree's job at the INA controller is {tree.name}")
    return [Save(name)]


def refused(book: Book, name: str, composite: str, why: str, now_ms: int) -> list[Command]:
    """The controller does not take the tree: its places are given back."""
    job = book.scheduler.jobs.get(name)
    groups = [each for each in job.request.groups if each.composite == composite] if job is not None else []
    trees = [each for each in groups if book.scheduler.is_tree(each.id)]
    return [command for each in trees for command in book.decided(book.scheduler.refuse(each.id, why, now_ms))]


def released(book: Book, name: str, composite: str) -> list[Command]:
    """The controller has no such job any more."""
    request = book.requests.get(name)
    if request is None or request.trees.pop(composite, None) is None:
        return []
    return [Save(name)]
