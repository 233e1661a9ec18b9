"""Every exception of the tree survives pickle and copy: a pool of processes hands it to its parent."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from enum import Enum
from typing import Any

import offpath
from offpath.bindings.wire.codes import Reason, Status

_OPTIONAL = ("ray", "pyverbs", "grpc", "torch", "flwr", "mypyc", "setuptools")
"""What a module of offpath may need and a machine may lack."""


def kinds() -> list[type[BaseException]]:
    """All that offpath's packages define."""
    missing = {}
    for module in pkgutil.walk_packages(offpath.__path__, "offpath."):
        try:
            importlib.import_module(module.name)
        except ImportError as fault:
            missing[module.name] = str(fault.name).partition(".")[0]
    assert set(missing.values()) <= set(_OPTIONAL), missing
    found, todo = set[type[BaseException]](), [BaseException]
    while todo:
        for each in todo.pop().__subclasses__():
            if each not in found:
                found.add(each)
                todo.append(each)
    return sorted(
        (each for each in found if each.__module__.startswith("offpath.")), key=lambda each: each.__qualname__
    )


def value_for(parameter: inspect.Parameter) -> Any:
    """An argument that a constructor takes."""
    kind = str(parameter.annotation)
    if isinstance(parameter.annotation, type) and issubclass(parameter.annotation, Enum):
        return next(iter(parameter.annotation))
    known: dict[str, Any] = {"Status": Status.FAILED, "Reason": Reason.NONE, "int": 3, "float": 1.5, "bool": True}
    if kind.startswith(("list", "Sequence", "tuple", "Iterable", "Collection")):
        return []
    if kind.startswith(("dict", "Mapping")):
        return {}
    return known.get(kind, "text")


def made(kind: type[BaseException]) -> BaseException:
    """One, by its own constructor."""
    if kind.__init__ in (Exception.__init__, ValueError.__init__):
        return kind("text", 7)
    wanted = [
        each
        for each in inspect.signature(kind).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) and each.default is each.empty
    ]
    named = {
        each.name: value_for(each)
        for each in inspect.signature(kind).parameters.values()
        if each.kind is each.KEYWORD_ONLY and each.default is each.empty
    }
    return kind(*[value_for(each) for each in wanted], **named)


def test_every_exception_survives_pickle_and_copy() -> None:
    found = kinds()
    assert len(found) > 100
    for kind in found:
        fault = made(kind)
        fault.add_note("a note")
        for travelled in (pickle.loads(pickle.dumps(fault)), copy.copy(fault), copy.deepcopy(fault)):
            assert type(travelled) is kind
            assert (str(travelled), travelled.args) == (str(fault), fault.args), kind
            assert vars(travelled) == vars(fault), kind
