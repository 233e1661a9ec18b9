"""Layout files of mig-parted and what they mean for a GPU: rules of the format, comparison, placements."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offpath.bindings.mig import gpu_model
from offpath.host_helper.migd import protocol
from offpath.host_helper.migd.errors import LayoutImpossible, LayoutInvalid
from offpath.host_helper.migd.layout_file import LayoutEntry, parse_layout, read_layout
from offpath.host_helper.migd.layout_plan import has_mode, is_applied, plan

A100 = gpu_model("A100-40GB")
EXAMPLE = """
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  all-1g.5gb:
    - devices: all
      mig-enabled: true
      mig-devices:
        "1g.5gb": 7
  mixed:
    - devices: [0, 2]
      mig-enabled: false
    - device-filter: ["0x20B010DE", "0x233010DE"]
      devices: [1, 2]
      mig-enabled: true
      mig-devices:
        "1g.5gb": 2
        "2g.10gb": 1
        "3g.20gb": 1
    - device-filter: "0x20B710DE"
      devices: all
      mig-enabled: true
      mig-devices: {"1g.6gb": 4}
  placed:
    - devices: all
      mig-enabled: true
      mig-devices: {"1g.5gb": 2}
      offpath-starts: {"1g.5gb": [3, 5]}
"""
A100_ID, A30_ID = 0x20B010DE, 0x20B710DE


def entry(**keys: Any) -> LayoutEntry:
    raw = {"devices": "all", "mig-enabled": True, **{key.replace("_", "-"): value for key, value in keys.items()}}
    return LayoutEntry.model_validate(raw)


def gpu(*placed: tuple[str, int], mig: str = "on", owner: str = "layout", bare: bool = False) -> protocol.Gpu:
    """An A100 as migd describes it, with instances."""
    line = protocol.GpuLine(
        index=0, uuid="GPU-1", name="A100", pci="00000000:17:00.0", pci_device_id=A100_ID, minor=0, mode="mig",
        mig=mig, memory_mib=40960,
    )  # fmt: skip
    profiles = [
        protocol.ProfileLine(
            name=p.name, number=n, profile_id=n, compute_slices=p.compute_slices, memory_slices=p.memory_slices,
            multiprocessors=1, memory_mib=1, starts=list(p.starts), max_instances=p.max_instances,
        )
        for n, p in enumerate(A100.profiles)
    ]  # fmt: skip
    instances = [
        protocol.InstanceLine(
            gpu_instance=n, compute_instances=[] if bare else [0], profile=name, start=start,
            size=A100.profile(name).memory_slices, uuid="MIG-1", owner=owner,
        )
        for n, (name, start) in enumerate(placed)
    ]  # fmt: skip
    return protocol.Gpu(gpu=line, profiles=profiles if mig == "on" else [], instances=instances)


# -- files ------------------------------------------------------------------------------------------------------------
def layout(tmp_path: Path, label: str | None, text: str = EXAMPLE) -> Any:
    path = tmp_path / "mig.yaml"
    path.write_text(text)
    return read_layout(str(path), label)


def test_the_last_entry_that_matches_counts(tmp_path: Path) -> None:
    mixed = layout(tmp_path, "mixed")
    assert mixed.of(0, A100_ID).mig_enabled is False
    assert mixed.of(2, A100_ID).mig_devices == {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}
    assert mixed.of(2, A30_ID).mig_devices == {"1g.6gb": 4}
    assert mixed.of(1, 0x1EB810DE) is None


def test_a_file_with_one_layout_needs_no_label_and_with_several_it_does(tmp_path: Path) -> None:
    one = "version: v1\nmig-configs:\n  only: [{devices: all, mig-enabled: false}]\n"
    assert layout(tmp_path, None, one).label == "only"
    with pytest.raises(LayoutInvalid, match="choose one with -c"):
        layout(tmp_path, None)
    with pytest.raises(LayoutInvalid, match="no layout 'none'"):
        layout(tmp_path, "none")
    with pytest.raises(LayoutInvalid, match="No such file"):
        read_layout(str(tmp_path / "missing"))


ENTRY = "version: v1\nmig-configs:\n  a:\n  - {%s}\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("version: v2\nmig-configs: {a: [{devices: all, mig-enabled: false}]}", "version"),
        ("mig-configs: {a: [{devices: all, mig-enabled: false}]}", "version"),
        ("version: v1\nmig-configs: {}", "mig-configs"),
        ("version: v1\nmig-configs: {a: []}", "mig-configs"),
        ("version: v1\ncolour: red\nmig-configs: {a: [{devices: all, mig-enabled: false}]}", "colour"),
        (ENTRY % "mig-enabled: false", "devices"),
        (ENTRY % "devices: all", "mig-enabled"),
        (ENTRY % "devices: some, mig-enabled: false", "devices"),
        (ENTRY % "devices: [-1], mig-enabled: false", "devices"),
        (ENTRY % "devices: all, mig-enabled: 'yes'", "mig-enabled"),
        (ENTRY % "devices: all, mig-enabled: true", "mig-devices is missing"),
        (ENTRY % "devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}", "must be empty"),
        (ENTRY % "devices: all, mig-enabled: true, mig-devices: {1g.5gb: 0}", "every count is 0"),
        (ENTRY % "devices: all, mig-enabled: true, mig-devices: {1g: 1}", "not a profile"),
        (ENTRY % "devices: all, mig-enabled: true, mig-devices: {1c.3g.20gb: 1}", "one compute instance"),
        (ENTRY % "devices: all, mig-enabled: true, mig-devices: {1g.5gb: -1}", "mig-devices"),
        (ENTRY % "devices: all, mig-enabled: true, mig-devices: {1g.5gb: 1.5}", "mig-devices"),
        (ENTRY % "device-filter: A100, devices: all, mig-enabled: false", "device-filter"),
        (ENTRY % "devices: all, mig-enabled: true, mig-devices: {1g.5gb: 2}, offpath-starts: {1g.5gb: [0]}", "starts"),
        ("version: v1\nversion: v1\n", "line 1: keys"),
        ("a: &x [1]\nb: *x\n", "line 2: aliases"),
        ("1: 2\n", "line 1: keys"),
        ("[", "not YAML"), ("", "file"), ("\x00", "not YAML"), ("!!python/object/apply:os.abort []", "not YAML"),
        ("[" * 5000, "not YAML"),
    ],
)  # fmt: skip
def test_a_rule_that_is_broken_is_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(LayoutInvalid, match=told):
        layout(tmp_path, None, text)


ALL_CARDS = """
version: v1
mig-configs:
  all-1g.5gb:
    - {devices: all, mig-enabled: true, mig-devices: {"1g.5gb": 7}}
  all-1g.24gb-me:
    - {devices: all, mig-enabled: true, mig-devices: {"1g.24gb-me": 4}}
  all-1g.24gb.me.all:
    - {devices: all, mig-enabled: true, mig-devices: {"1g.24gb+me.all": 1}}
  all-2g.48gb.gfx:
    - {devices: all, mig-enabled: true, mig-devices: {"2g.48gb+gfx": 2}}
  several:
    - {devices: all, mig-enabled: true, mig-devices: {"1g.5gb+me,gfx": 1, "1g.5gb+gfx-me": 1}}
  newer:
    - {devices: all, mig-enabled: true, mig-devices: {"1x.5gb": 1}, of-a-later-release: true}
  composed:
    - {devices: all, mig-enabled: true, mig-devices: {"1c.3g.20gb": 1}}
"""
"""The shape of the vendor's default file: one for all cards."""


@pytest.mark.parametrize(
    ("label", "counts"),
    [
        ("all-1g.5gb", {"1g.5gb": 7}),
        ("all-1g.24gb-me", {"1g.24gb-me": 4}),
        ("all-1g.24gb.me.all", {"1g.24gb+me.all": 1}),
        ("all-2g.48gb.gfx", {"2g.48gb+gfx": 2}),
        ("several", {"1g.5gb+me,gfx": 1, "1g.5gb+gfx-me": 1}),
    ],
)
def test_the_vendors_file_for_all_cards_is_accepted(tmp_path: Path, label: str, counts: dict[str, int]) -> None:
    (found,) = layout(tmp_path, label, ALL_CARDS).entries
    assert found.mig_devices == counts


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ("newer", r"mig-configs\.newer\.0\.mig-devices: .*'1x\.5gb' is not a profile.*of-a-later-release"),
        ("composed", r"mig-configs\.composed\.0\.mig-devices: .*one compute instance"),
    ],
)
def test_the_chosen_layout_is_checked_strictly(tmp_path: Path, label: str, told: str) -> None:
    with pytest.raises(LayoutInvalid, match=told):
        layout(tmp_path, label, ALL_CARDS)


@pytest.mark.parametrize("name", ["1g.5gb-", "1g.5gb+", "1g.5gb-Me", "1g.5gb+me,", "1g.5gb me", "-me", "1g.5gb--me"])
def test_a_profile_with_a_faulty_attribute_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a profile"):
        entry(mig_devices={name: 1})


def test_a_file_that_is_too_long_is_not_parsed(tmp_path: Path) -> None:
    with pytest.raises(LayoutInvalid, match="longer than"):
        layout(tmp_path, None, "#" * (1 << 20) + "\n#")


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_bytes_raise_anything_else(body: bytes) -> None:
    try:
        parse_layout(body)
    except LayoutInvalid:
        return
    raise AssertionError("these bytes are no layout")


# -- comparison -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("found", "wanted", "applied"),
    [
        (gpu(("1g.5gb", 0), ("1g.5gb", 4)), entry(mig_devices={"1g.5gb": 2}), True),
        (gpu(("1g.5gb", 0)), entry(mig_devices={"1g.5gb": 2}), False),
        (gpu(("1g.5gb", 0), ("3g.20gb", 4)), entry(mig_devices={"1g.5gb": 1}), False),
        (gpu(("1g.5gb", 0)), entry(mig_devices={"1g.5gb": 1, "3g.20gb": 0}), False),
        (gpu(("1g.5gb", 3)), entry(mig_devices={"1g.5gb": 1}, offpath_starts={"1g.5gb": [3]}), True),
        (gpu(("1g.5gb", 2)), entry(mig_devices={"1g.5gb": 1}, offpath_starts={"1g.5gb": [3]}), False),
        (gpu(mig="off"), entry(mig_devices={"1g.5gb": 1}), False),
        (gpu(mig="pending"), entry(mig_enabled=False), False),
        (gpu(mig="off"), entry(mig_enabled=False), True),
        (gpu(mig="unsupported"), entry(mig_enabled=False), True),
        (gpu(), entry(mig_enabled=False), False),
    ],
)
def test_a_layout_is_applied_if_mode_and_counts_are_equal(
    found: protocol.Gpu, wanted: LayoutEntry, applied: bool
) -> None:
    assert is_applied(found, wanted) == applied


def test_the_mode_alone_can_be_compared() -> None:
    assert has_mode(gpu(), entry(mig_devices={"1g.5gb": 1}))
    assert not has_mode(gpu(mig="off"), entry(mig_devices={"1g.5gb": 1}))


# -- plans ------------------------------------------------------------------------------------------------------------
def is_legal(placed: list[tuple[str, int]]) -> bool:
    """The rule of the MIG tables, written independently of the planner."""
    slices = Counter(s for name, start in placed for s in range(start, start + A100.profile(name).memory_slices))
    return (
        all(start in A100.profile(name).starts for name, start in placed)
        and max(slices.values(), default=0) <= 1
        and sum(A100.profile(name).compute_slices for name, _ in placed) <= A100.compute_slices
        and all(n <= A100.profile(name).max_instances for name, n in Counter(n for n, _ in placed).items())
        and sum(name.endswith("+me") for name, _ in placed) <= 1
    )


def first_fits(wanted: list[tuple[str, int]]) -> list[tuple[str, int]]:
    held: list[tuple[str, int]] = []
    for place in wanted:
        if is_legal([*held, place]):
            held.append(place)
    return held


@given(st.data())
def test_counts_of_a_legal_set_are_always_placed_legally_from_any_state(data: st.DataObject) -> None:
    there, wanted = (
        first_fits(data.draw(st.lists(st.tuples(st.sampled_from([p.name for p in A100.profiles]),
                                                st.integers(0, 7)), max_size=8)))
        for _ in range(2)
    )  # fmt: skip
    counts = dict(Counter(name for name, _ in wanted))
    if not counts:
        return
    found = plan(gpu(*there), entry(mig_devices=counts))
    then = [(line.profile, line.start) for line in found.keep] + list(found.create)
    assert is_legal(then)
    assert Counter(name for name, _ in then) == counts
    assert sorted([*found.keep, *found.destroy], key=lambda line: line.gpu_instance) == gpu(*there).instances


def test_what_is_part_of_the_layout_stays_where_it_is() -> None:
    found = plan(gpu(("1g.5gb", 3), ("2g.10gb", 4)), entry(mig_devices={"1g.5gb": 1, "3g.20gb": 1}))
    assert [(line.profile, line.start) for line in found.keep] == [("1g.5gb", 3)]
    assert [(line.profile, line.start) for line in found.destroy] == [("2g.10gb", 4)]
    assert found.create == (("3g.20gb", 4),)


def test_what_is_in_the_way_is_moved() -> None:
    found = plan(gpu(("1g.5gb", 1), ("1g.5gb", 5)), entry(mig_devices={"1g.5gb": 2, "3g.20gb": 1}))
    assert [line.start for line in found.keep] == [5]
    assert [line.start for line in found.destroy] == [1]
    assert found.create == (("1g.5gb", 4), ("3g.20gb", 0))


def test_an_instance_without_a_compute_instance_is_not_kept() -> None:
    found = plan(gpu(("1g.5gb", 0), bare=True), entry(mig_devices={"1g.5gb": 1}))
    assert len(found.destroy) == 1
    assert found.create == (("1g.5gb", 0),)


def test_named_starts_are_taken_as_they_are() -> None:
    found = plan(gpu(), entry(mig_devices={"1g.5gb": 2}, offpath_starts={"1g.5gb": [6, 2]}))
    assert found.create == (("1g.5gb", 2), ("1g.5gb", 6))
    assert plan(gpu(("1g.5gb", 2), ("1g.5gb", 6)), entry(
        mig_devices={"1g.5gb": 2}, offpath_starts={"1g.5gb": [6, 2]})).is_applied  # fmt: skip


@pytest.mark.parametrize(
    ("found", "wanted", "told"),
    [
        (gpu(), entry(mig_devices={"1g.5gb": 8}), "do not fit"),
        (gpu(), entry(mig_devices={"4g.20gb": 1, "7g.40gb": 1}), "do not fit"),
        (gpu(), entry(mig_devices={"1g.5gb+me": 2}), "do not fit"),
        (gpu(), entry(mig_devices={"1g.99gb": 1}), "no profile 1g.99gb"),
        (gpu(mig="off"), entry(mig_devices={"1g.5gb": 1}), "nvidia-smi -i 0 -mig 1"),
        (gpu(), entry(mig_enabled=False), "nvidia-smi -i 0 -mig 0"),
        (gpu(), entry(mig_devices={"3g.20gb": 1}, offpath_starts={"3g.20gb": [1]}), "illegal"),
        (gpu(), entry(mig_devices={"1g.5gb": 1, "3g.20gb": 1},
                      offpath_starts={"1g.5gb": [1], "3g.20gb": [0]}), "overlap"),
    ],
)  # fmt: skip
def test_a_layout_that_cannot_be_is_an_error(found: protocol.Gpu, wanted: LayoutEntry, told: str) -> None:
    with pytest.raises(LayoutImpossible, match=told):
        plan(found, wanted)


def test_a_gpu_that_is_to_have_no_mig_needs_nothing() -> None:
    assert plan(gpu(mig="off"), entry(mig_enabled=False)).is_applied
