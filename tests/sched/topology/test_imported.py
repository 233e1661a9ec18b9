"""Files of other programs: what they say is read, what they get wrong is told with its line, nothing hostile hurts."""

from __future__ import annotations

import contextlib
import json
import time
import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.sched.topology import slurm
from offpath.sched.topology.graph import Pod, Topology, TopologyError
from offpath.sched.topology.hostlist import expand
from offpath.sched.topology.imported import read, regular

from ...sizes import sized

MUTANTS = sized(quick=300, fast=500, slow=2_000, full=50_000)

CONF = """
# made by hand
SwitchName=s0 Nodes=dev[0-5]
switchname=s1 nodes=dev[6-11] LinkSpeed=100   # keys in any case
SwitchName=s2 \\
    Nodes=dev[12-16],dev17
SwitchName=s3 Switches=s[0-2]
"""
SHOWN = "SwitchName=r Level=1 LinkSpeed=1 Nodes=n[0-3] Switches=a\nSwitchName=a Level=0 LinkSpeed=1 Nodes=n[0-3]\n"
BLOCKS = "BlockName=b1 Nodes=n[01-30]\nBlockName=b2 Nodes=n[31-60]\nBlockName=b3 Nodes=n[61-90]\nBlockSizes=30,60\n"
YAML = """---
- topology: tree1
  cluster_default: True
  tree:
    switches:
    - switch: root
      children: s[1-2]   # both
    - switch: s1
      nodes: "node[01-04]"
    - switch: s2
      nodes: node[05-08]
- topology: blocks
  cluster_default: False
  block:
    block_sizes: [4, 8]
    blocks:
      - block: b1
        nodes: node[01-04]
      - block: b2
        nodes: node[05-08]
      - block: b3
        nodes: node[09-12]
- topology: none
  flat: True
"""
GRAPH = {
    "instances": [
        {"id": f"i{n}", "type": "H100", "network_layers": [f"leaf{n // 2}", f"spine{n // 4}", "core"], "attributes": {}}
        for n in range(8)
    ]
}
TABLE = {
    "switches": {
        "S1": {"switches": ["S2", "S3"]},
        "S2": {"nodes": [{"node_id": "I21", "accelerated_network_id": "a"}, {"node_id": "I22"}]},
        "S3": {"nodes": [{"node_id": "I34"}]},
    }
}
TWO = Pod(0, 8, (Pod(0, 4), Pod(4, 4)))


def test_hostlists_expand_as_slurm_expands_them() -> None:
    assert expand("n[008-011,20],m7") == ["n008", "n009", "n010", "n011", "n20", "m7"]
    assert expand("r[1-2]n[0-1]x") == ["r1n0x", "r1n1x", "r2n0x", "r2n1x"]
    assert expand("tux[0-3,12]") == ["tux0", "tux1", "tux2", "tux3", "tux12"]


@pytest.mark.parametrize(
    "text",
    [
        "n[1-", "n1]", "n[[1]]", "n[]", "n[3-1]", "n[a-b]", "n[1-99999999]", "n[1-999][1-999][1-999]", "", ",",
        "n[1],,m", "n 1", "n\x00", "x" * 300, "n[1--2]", "n[" + "1" * 40 + "]",
    ],
)  # fmt: skip
def test_a_hostlist_that_is_none_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(TopologyError, match="line 7: ") as caught:
        expand(text, 7)
    assert caught.value.line == 7


@pytest.mark.parametrize(
    "text",
    ["x" * 3000 + "[000000-999998]", "x" * 200 + "[1-999]" * 2 + "y" * 60, "n[0-131072]", "n[0-9999],m[0-131071]"],
)
def test_nothing_is_made_of_a_hostlist_before_its_size_is_known(text: str) -> None:
    """Three kilobytes had taken more than two gigabytes."""
    tracemalloc.start()
    try:
        with pytest.raises(TopologyError, match="line 7: "):
            expand(text, 7)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


def test_the_lists_of_one_file_have_one_bound() -> None:
    """Two for each host: names of switches count too. Forty such lines had taken more than 100 s."""
    lines = "".join(f"SwitchName=s{n} Nodes=n{n}x[0-99999]\n" for n in range(40))
    with pytest.raises(TopologyError, match=r"line 3: .* makes more than 131072 names, with those before it"):
        read(lines)
    blocks = "".join(f"      - block: b{n}\n        nodes: n{n}x[0-99999]\n" for n in range(40))
    with pytest.raises(TopologyError, match="with those before it"):
        slurm.yaml(f"- topology: t\n  block:\n    blocks:\n{blocks}")


def test_a_regular_topology_is_bounded_before_it_is_made() -> None:
    with pytest.raises(TopologyError, match="more than 131072 hosts"):
        regular("tree:2x2x2x2x2x28899")


def test_topology_conf_with_switches() -> None:
    found = read(CONF)
    assert (found.hosts, found.switches) == (18, 4)
    assert found.pods == Pod(0, 18, (Pod(0, 6), Pod(6, 6), Pod(12, 6)))
    assert found.names[-4:] == ("s0", "s1", "s2", "s3")
    assert found.level[-4:] == (1, 1, 1, 2)
    assert found.names[17] == "dev17"


def test_topology_conf_with_blocks_makes_switches_of_them() -> None:
    found = read(BLOCKS)
    assert found.names[90:] == ("b1", "b2", "b3", "blocks-of-60-0", "blocks-of-60-1", "all-blocks")
    assert found.pods == Pod(0, 90, (Pod(0, 60, (Pod(0, 30), Pod(30, 30))), Pod(60, 30)))


CONF_SHAPE = Pod(0, 8, (Pod(0, 4), Pod(4, 4)))


@pytest.mark.parametrize(
    "text",
    [
        # ansible-role-openhpc: each node on a line of its own
        "SwitchName=a Nodes=n0,\\\nn1,\\\nn2,\\\nn3\nSwitchName=b Nodes=n[4-7]\nSwitchName=c Switches=a,\\\nb\n",
        "SwitchName=a Nodes=n[0-\\\n3]\nSwitchName=b Nodes=n4,n[5-\\\n7]\nSwitch\\\nName=c Switches=a,b\n",
        "SwitchName = a Nodes = n[0-3]\nSWITCHNAME= b NODES =n[4-7]\nswitchname\t=\tc\tswitches\t=\ta,b",
        'SwitchName="a" Nodes="n0, n1 n[2-3]"\nSwitchName = "b" Nodes=n[4-7],\nSwitchName=c Switches="a,b" # the root',
        "SwitchName=a \\  # a comment ends with its line\n  Nodes=n[0-3]\n#SwitchName=x \\\nSwitchName=b Nodes=n[4-7]\n"
        "SwitchName=c Switches=a,b\n",
        "SwitchName=a Nodes=n0,n1,,n2,n3,\\\r\n\r\nSwitchName=b Nodes=n[4-7] \\  \r\n\r\nSwitchName=c Switches=a,b\r\n",
        "\ufeffSwitchName=a Nodes=n[0-3]\nSwitchName=b Nodes=n[4-7]\nSwitchName=c Switches=a,b,\\",
    ],
)
def test_topology_conf_is_read_as_slurm_reads_it(text: str) -> None:
    found = read(text)
    assert found.names == (*(f"n{n}" for n in range(8)), "a", "b", "c")
    assert found.pods == CONF_SHAPE


def test_escapes_are_slurms() -> None:
    found = read("SwitchName=a\\#1 Nodes=n[0-1] # SwitchName\nSwitchName=b Nodes=n\\[2\\]\n")
    assert found.names == ("n0", "n1", "n2", "a#1", "b")


def test_the_output_of_scontrol_show_topology_is_read() -> None:
    found = read(
        "SwitchName=root Level=1 LinkSpeed=1 Nodes=n[0-7] Switches=a,b\n"
        "SwitchName=a Level=0 LinkSpeed=1 Nodes=n[0-3]\nSwitchName=b Level=0 LinkSpeed=1 Nodes=n[4-7] Later=x\n"
    )
    assert found.pods == CONF_SHAPE
    assert found.level[-3:] == (2, 1, 1)
    assert len(found.up[found.host_numbers["n0"]]) == 1


def test_blocks_of_scontrol_show_topology_are_read_with_the_larger_ones() -> None:
    shown = "".join(f"BlockName=b{n} BlockIndex={n} Nodes=n[{30 * n}-{30 * n + 29}] BlockSize=30\n" for n in range(3))
    found = read(shown + "AggregatedBlock=b[0-1] BlockIndex=3 Nodes=n[0-59] BlockSize=60\n")
    assert found.names[90:] == ("b0", "b1", "b2", "blocks-of-60-0", "blocks-of-60-1", "all-blocks")


def test_topology_yaml_tree_block_and_the_default() -> None:
    assert read(YAML).pods == TWO
    blocks = slurm.yaml(YAML, "blocks")
    assert blocks.pods == Pod(0, 12, (TWO, Pod(8, 4)))
    with pytest.raises(TopologyError, match="flat"):
        slurm.yaml(YAML, "none")
    with pytest.raises(TopologyError, match="known topologies: tree1, blocks, none"):
        slurm.yaml(YAML, "other")


def test_topographs_instances_and_switches() -> None:
    found = read(json.dumps(GRAPH))
    assert found.pods == Pod(0, 8, (Pod(0, 4, (Pod(0, 2), Pod(2, 2))), Pod(4, 4, (Pod(4, 2), Pod(6, 2)))))
    assert found.host_numbers["i5"] == 5
    table = read(json.dumps(TABLE))
    assert table.names == ("I21", "I22", "I34", "S1", "S2", "S3")
    assert table.level[3:] == (2, 1, 1)


def test_a_switch_with_two_parents_is_a_graph_all_the_same() -> None:
    found = read("SwitchName=a Nodes=x,y\nSwitchName=b Nodes=z\nSwitchName=p Switches=a,b\nSwitchName=q Switches=a,b\n")
    assert [parent for parent, _ in found.up[3]] == [5, 6]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("SwitchName=a Nodes=x\nSwitchName=a Nodes=y", 2, "twice"),
        ("SwitchName=a Nodes=x\nSwitchName=b Switches=c", 2, "not declared"),
        ("SwitchName=a Switches=b Nodes=x\nSwitchName=b Switches=a", 1, "below itself"),
        ("SwitchName=a Switches=a", 1, "below itself|no hosts"),
        ("SwitchName=a", 1, "neither hosts nor switches"),
        ("SwitchName=a Nodes=b\nSwitchName=b Nodes=x", 1, "a switch and a host"),
        ("SwitchName=a Nodes=x Colour=red", 1, "is not a key"),
        ("SwitchName=a Nodes=x Nodes=y", 1, "is duplicated"),
        ("\n\nSwitchName=a\\\n Nodes", 3, "KEY=VALUE"),
        ("SwitchName=a \\", 1, "neither hosts nor switches"),
        ("# rack 1\nInclude /etc/slurm/rack1.conf", 2, "Include is not followed: insert"),
        ("SwitchName=s1 Nodes=n1, n2", 1, "'n2' is not KEY=VALUE"),
        ("SwitchName=s1 Nodes=n1 \\\\\nSwitchName=s2", 1, "KEY=VALUE"),
        ("SwitchName=s1 Nodes=", 1, "'Nodes=' is not KEY=VALUE"),
        ("SwitchName=s1 Nodes=n1\nSwitchName=s2 Level Nodes=n2", 2, "'Level' is not KEY=VALUE"),
        ("AggregatedBlock=b1", 1, "neither SwitchName"),
        ("RingName=r Nodes=n[1-4]", 1, "neither SwitchName"),
        ("SwitchName=" + "x" * 65 + " Nodes=a", 1, "64 characters"),
        ("BlockName=b Nodes=x\nBlockSizes=3,9", 2, "power-of-two"),
        ("BlockName=b Nodes=x\nBlockSizes=0", 2, "is not a block size"),
        ("BlockName=b", 1, "no nodes"),
        ("- topology: t\n  tree:\n    switches:\n    - nodes: x", 4, "without a name"),
        ("- topology: t\n  tree:\n    switches:\n    - switch: s\n      nodes: x[", 4, "brackets"),
        ("- topology: t\n  tree: {a: b}", 2, "unsupported YAML"),
        ("- topology: t\n  tree: &x\n", 2, "unsupported YAML"),
        ("- topology: t\n\ttree: x", 2, "tab"),
        ("- topology: t\n   tree: x", 2, "indentation|neither"),
        ("- topology: t\n- topology: t", 2, "is duplicated"),
        ("- topology: t\n  block:\n    blocks: []\n  tree:\n    switches: []", 1, "one of"),
        ('{"switches": {\n"a": }', 2, "invalid JSON"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(TopologyError, match=said) as caught:
        read(text)
    assert caught.value.line in (line, None if "|no hosts" in said else line)


@pytest.mark.parametrize(
    "data",
    [
        [], 7, {}, {"switches": {}}, {"switches": []}, {"instances": []}, {"instances": [3]},
        {"instances": [{"id": "a"}]}, {"instances": [{"id": "", "network_layers": ["x"]}]},
        {"instances": [{"id": "a", "network_layers": [1]}]}, {"instances": [{"id": "a", "network_layers": ["x", "x"]}]},
        {"instances": [{"id": "a", "network_layers": ["x"]}] * 2},
        {"instances": [{"id": "a", "network_layers": ["x", "y"]}, {"id": "b", "network_layers": ["y", "x"]}]},
        {"switches": {"a": 3}}, {"switches": {"a": {"nodes": [{}]}}}, {"switches": {"a": {"nodes": 3}}},
        {"switches": {"": {"nodes": ["x"]}}}, {"switches": {"a": {"switches": ["b"]}}},
    ],
)  # fmt: skip
def test_json_that_is_no_topology_is_refused(data: object) -> None:
    with pytest.raises(TopologyError):
        read(json.dumps(data) if data != 7 else "{7")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000, '{"a":' * 100_000, '{"instances": ' + "9" * 10_000 + "}",
        "---\n" + "- " * 200_000 + "x", "---\n" + "".join(f"{' ' * n}a:\n" for n in range(2_000)),
        "SwitchName=a Nodes=" + "[" * 100_000, "SwitchName=a Nodes=x" + "[1-2]" * 100_000,
        "\n".join(f"SwitchName=s{n} Switches=s{n + 1}" for n in range(20_000)) + "\nSwitchName=s20000 Nodes=x",
    ],
)  # fmt: skip
def test_depth_and_size_are_bounded(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(TopologyError):
        read(text)
    assert time.process_time() - begun < 10


def test_whatever_is_done_to_a_good_file_is_a_topology_or_a_typed_error() -> None:
    random = Random(7)
    seeds = [CONF, SHOWN, BLOCKS, YAML, json.dumps(GRAPH), json.dumps(TABLE)]
    refused = 0
    for _ in range(MUTANTS):
        text = list(random.choice(seeds))
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(text))
            what = random.randrange(4)
            if what == 0:
                del text[at : at + random.randint(1, 20)]
            elif what == 1:
                text.insert(at, random.choice("[]{}:,-=\"'#\n \t\\0129x\x00é"))
            elif what == 2:
                text[at:at] = text[at : at + random.randint(1, 40)]
            else:
                text[at] = random.choice(text)
            if not text:
                text = ["x"]
        try:
            assert isinstance(read("".join(text)), Topology)
        except TopologyError:
            refused += 1
    assert MUTANTS * 0.1 < refused < MUTANTS


@given(st.text(max_size=200))
def test_any_text_is_a_topology_or_a_typed_error(text: str) -> None:
    with contextlib.suppress(TopologyError):
        read(text)


def test_a_hundred_thousand_hosts_are_read_in_seconds() -> None:
    lines = [f"SwitchName=leaf{n} Nodes=n[{n * 32:06}-{n * 32 + 31:06}]" for n in range(3125)]
    lines += [f"SwitchName=agg{n} Switches=leaf[{n * 25}-{n * 25 + 24}]" for n in range(125)]
    begun = time.process_time()
    found = read("\n".join([*lines, "SwitchName=core Switches=agg[0-124]"]))
    assert time.process_time() - begun < 20
    assert (found.hosts, found.switches, len(found.pods.children)) == (100_000, 3_251, 125)
