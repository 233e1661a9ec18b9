"""Reads any supported description of a network; the beginning of the text determines the format."""

from __future__ import annotations

import re
from typing import Final

from offpath.sched.topology import slurm
from offpath.sched.topology.fattree import fat_tree, leaf_spine, plain_tree
from offpath.sched.topology.graph import Topology, TopologyError
from offpath.sched.topology.topograph import topograph

_YAML: Final = re.compile(r"^(?:---|\s*-\s+topology\s*:)", re.MULTILINE)
_REGULAR: Final = re.compile(r"(fat-tree|leaf-spine|tree):([0-9]{1,7}(?:[x:/][0-9]{1,7}){0,7})")


def read(text: str) -> Topology:
    """Slurm's topology.conf or topology.yaml, what `scontrol show topology` prints, or Topograph's JSON. Raises:
    TopologyError."""
    text = text.removeprefix("\ufeff")  # of editors on Windows
    if text.lstrip().startswith(("{", "[")):
        return topograph(text)
    if _YAML.search(text):
        return slurm.yaml(text)
    return slurm.conf(text)


def is_regular(words: str) -> bool:
    """True if ``words`` is an argument for `regular`, not a file name."""
    return _REGULAR.fullmatch(words) is not None


def regular(words: str) -> Topology:
    """``fat-tree:16`` (degree), ``fat-tree:16/4`` (4 up-links instead of 8), ``leaf-spine:LEAVESxHOSTSxSPINES``,
    ``tree:8x8x16`` (children, from the leaves up). Raises: TopologyError."""
    match = _REGULAR.fullmatch(words)
    if match is None:
        raise TopologyError(f"{words[:60]!r} is not one of fat-tree:K, fat-tree:K/UP, leaf-spine:LxHxS, tree:AxBxC")
    numbers = [int(each) for each in re.split("[x:/]", match[2])]
    if match[1] == "tree":
        return plain_tree(*numbers)
    if match[1] == "fat-tree" and len(numbers) in (1, 2):
        return fat_tree(*numbers)
    if match[1] == "leaf-spine" and len(numbers) == 3:
        return leaf_spine(*numbers)
    raise TopologyError(f"{words[:60]!r} has {len(numbers)} numbers")
