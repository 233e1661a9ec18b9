"""Reads Slurm's topology.conf, topology.yaml, plugins tree and block (topology.conf(5), topology.yaml(5)), and the
output of `scontrol show topology`.

topology.conf is read as Slurm's own parser reads it (src/common/parse_config.c). A comment ends with its line. The line
after one that ends in a backslash follows directly behind it: ``Nodes=a,\\`` and ``b`` are ``Nodes=a,b``. Blanks may
surround ``=``, and a value in quotes may have blanks.

The tree plugin names switches. The block plugin does not: each block becomes a switch, as do the larger blocks that
`BlockSizes` builds from contiguous ones, and one switch is above all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from offpath.sched.topology import plain_yaml
from offpath.sched.topology.declared import Declared, connected
from offpath.sched.topology.graph import MOST_HOSTS, Topology, TopologyError
from offpath.sched.topology.hostlist import Room, expand

_SWITCH: Final = {"switchname", "switches", "nodes", "linkspeed"}
_BLOCK: Final = {"blockname", "nodes"}
_SHOWN: Final = {"level", "blockindex"}
"""Keys that only `scontrol show topology` writes: a line with one may have any others."""
_PAIR: Final = re.compile(r'\s*([A-Za-z0-9_.]+)\s*=\s*(?:"([^"]*)"|(\S+))(?:\s|$)')
_COMMENT: Final = re.compile(r"((?:[^#\\]|\\.)*)#.*", re.DOTALL)
_COMMAS: Final = re.compile(r"\[[^\[\]]*\]|[,\s]+")
_LONGEST_NAME: Final = 64
"""Maximum length of a switch name: topology.conf(5)."""


def conf(text: str) -> Topology:
    """topology.conf, or `scontrol show topology`. With both switches and blocks, the switches count. Raises:
    TopologyError."""
    switches: list[Declared] = []
    blocks: list[Declared] = []
    sizes: tuple[list[int], int] = [], 0
    room = Room(2 * MOST_HOSTS)
    for line, words in _lines(text):
        if "switchname" in words:
            _known(words, _SWITCH, line)
            # scontrol repeats the nodes of all leaves below a switch.
            nodes = words.get("nodes") if "level" not in words or "switches" not in words else None
            switches.append(_switch(words["switchname"], words.get("switches"), nodes, room, line))
        elif "blockname" in words:
            _known(words, _BLOCK, line)
            blocks.append(Declared(words["blockname"], (), _listed(_given(words, "nodes", line), room, line), line))
            sizes = _with_size(sizes, words, line)
        elif "aggregatedblock" in words and "blockindex" in words:
            sizes = _with_size(sizes, words, line)
        elif "blocksizes" in words:
            sizes = [_size(each, line) for each in words["blocksizes"].split(",")], line
        else:
            raise TopologyError(f"a line of neither SwitchName, BlockName nor BlockSizes: {', '.join(words)}", line)
    if switches:
        return connected(switches)
    if not blocks:
        raise TopologyError("neither switches nor blocks")
    return connected(_above_blocks(blocks, *sizes))


def _lines(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Non-empty lines, joined where one ends in a backslash; keys in lower case."""
    begun, kept = 0, ""
    for line, raw in enumerate([*text.split("\n"), ""], 1):
        content = raw
        if "#" in raw and (comment := _COMMENT.fullmatch(raw)) is not None:
            content = comment[1]
        begun = begun or line
        bare = content.rstrip()
        if (len(bare) - len(bare.rstrip("\\"))) % 2:
            kept += bare[:-1]
            continue
        joined = kept + content
        if words := _words(re.sub(r"\\(.?)", r"\1", joined) if "\\" in joined else joined, begun):
            yield begun, words
        begun, kept = 0, ""


def _words(content: str, line: int) -> dict[str, str]:
    """The pairs of one line."""
    words: dict[str, str] = {}
    at, end = 0, len(content.rstrip())
    while at < end:
        pair = _PAIR.match(content, at)
        if pair is None:
            strange = content[at:].split(maxsplit=1)[0][:60]
            if not words and strange.lower() == "include":
                raise TopologyError("Include is not followed: insert the lines of that file", line)
            raise TopologyError(f"{strange!r} is not KEY=VALUE", line)
        key = pair[1].lower()
        if key in words:
            raise TopologyError(f"{pair[1][:60]} is duplicated", line)
        words[key] = pair[2] if pair[2] is not None else pair[3]
        at = pair.end()
    return words


def _known(words: Mapping[str, str], names: set[str], line: int) -> None:
    strange = sorted(set(words) - names)
    if strange and not words.keys() & _SHOWN:
        raise TopologyError(f"{strange[0][:60]!r} is not a key of this line", line)


def _with_size(sizes: tuple[list[int], int], words: Mapping[str, str], line: int) -> tuple[list[int], int]:
    """The sizes, with that of a block which scontrol shows."""
    size = words.get("blocksize")
    if size is None or "blockindex" not in words:
        return sizes
    return sorted({*sizes[0], _size(size, line)}), line


def _listed(text: str, room: Room, line: int) -> list[str]:
    """A hostlist, in which Slurm allows blanks, and commas with nothing between them; generated files have both."""
    return expand(_COMMAS.sub(lambda match: match[0] if match[0][0] == "[" else ",", text).strip(","), line, room)


def _given(words: dict[str, str], name: str, line: int) -> str:
    if name not in words:
        raise TopologyError(f"no {name}", line)
    return words[name]


def _switch(name: str, switches: str | None, hosts: str | None, room: Room, line: int) -> Declared:
    if not name or len(name) > _LONGEST_NAME:
        raise TopologyError(f"a switch's name has 1 to {_LONGEST_NAME} characters", line)
    if not switches and not hosts:
        raise TopologyError(f"switch {name!r} has neither hosts nor switches below it", line)
    below = _listed(switches, room, line) if switches else []
    return Declared(name, below, _listed(hosts, room, line) if hosts else [], line)


def _size(text: str, line: int) -> int:
    if not text.isdecimal() or not 1 <= len(text) <= 9 or int(text) < 1:
        raise TopologyError(f"{text[:60]!r} is not a block size", line)
    return int(text)


def _above_blocks(blocks: Sequence[Declared], sizes: Sequence[int], line: int) -> list[Declared]:
    """The blocks, and switches above them: each size is a power of two of base blocks."""
    found = list(blocks)
    below = [each.name for each in blocks]
    at, base = 1, sizes[0] if sizes else 1
    for size in sizes[1:]:
        times, rest = divmod(size, base)
        if rest or times <= at or times & (times - 1):
            raise TopologyError(f"block size {size} is not a larger power-of-two multiple of {base}", line)
        names = [f"blocks-of-{size}-{n // (times // at)}" for n in range(0, len(below), times // at)]
        for n, name in enumerate(names):
            found.append(Declared(name, below[n * (times // at) : (n + 1) * (times // at)], (), line))
        below, at = names, times
    if len(below) > 1:
        found.append(Declared("all-blocks", below, ()))
    return found


def yaml(text: str, name: str | None = None) -> Topology:
    """topology.yaml: the topology ``name``, or the first that is the cluster's default, or the only one that is not
    flat. Raises: TopologyError."""
    chosen = _chosen(plain_yaml.parse(text).items("the document"), name)
    fields = chosen.mapping("a topology")
    kinds = [kind for kind in ("tree", "block", "flat") if kind in fields]
    if len(kinds) != 1:
        raise TopologyError("a topology is one of tree, block and flat", chosen.line)
    if kinds == ["flat"]:
        raise TopologyError("a flat topology does not describe the network", chosen.line)
    room = Room(2 * MOST_HOSTS)
    if kinds == ["tree"]:
        switches = fields["tree"].mapping("tree").get("switches")
        if switches is None:
            raise TopologyError("a tree without switches", fields["tree"].line)
        return connected([_yaml_switch(each, room) for each in switches.items("switches")])
    block = fields["block"].mapping("block")
    blocks = block.get("blocks")
    if blocks is None:
        raise TopologyError("no blocks", fields["block"].line)
    declared = [_yaml_block(each, room) for each in blocks.items("blocks")]
    sizes = block.get("block_sizes")
    if sizes is None:
        return connected(_above_blocks(declared, (), 0))
    numbers = [_size(each.text("a block size"), each.line) for each in sizes.items("block_sizes")]
    return connected(_above_blocks(declared, numbers, sizes.line))


def _chosen(topologies: Sequence[plain_yaml.Yaml], name: str | None) -> plain_yaml.Yaml:
    named: dict[str, plain_yaml.Yaml] = {}
    default: plain_yaml.Yaml | None = None
    for each in topologies:
        fields = each.mapping("a topology")
        if "topology" not in fields:
            raise TopologyError("a topology without a name", each.line)
        own = fields["topology"].text("topology")
        if own in named:
            raise TopologyError(f"topology {own!r} is duplicated", each.line)
        named[own] = each
        is_default = "cluster_default" in fields and fields["cluster_default"].text("cluster_default").lower()
        if default is None and is_default in ("true", "yes", "on"):
            default = each
    if name is not None:
        if name not in named:
            raise TopologyError(f"unknown topology {name!r}; known topologies: {', '.join(named)}"[:200])
        return named[name]
    shaped = [each for each in named.values() if "flat" not in each.mapping("a topology")]
    if default is not None:
        return default
    if len(shaped) != 1:
        raise TopologyError("several topologies and no default: name one")
    return shaped[0]


def _yaml_switch(each: plain_yaml.Yaml, room: Room) -> Declared:
    fields = each.mapping("a switch")
    if "switch" not in fields:
        raise TopologyError("a switch without a name", each.line)
    texts = {key: value.text(key) for key, value in fields.items() if key in ("switch", "children", "nodes")}
    return _switch(texts["switch"], texts.get("children"), texts.get("nodes"), room, each.line)


def _yaml_block(each: plain_yaml.Yaml, room: Room) -> Declared:
    fields = each.mapping("a block")
    if "block" not in fields or "nodes" not in fields:
        raise TopologyError("a block has a name and nodes", each.line)
    return Declared(
        fields["block"].text("block"), (), expand(fields["nodes"].text("nodes"), each.line, room), each.line
    )
