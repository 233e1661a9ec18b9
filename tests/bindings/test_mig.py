"""The table of MIG geometry: what it must say whatever its numbers are, and the numbers NVIDIA prints."""

from __future__ import annotations

import dataclasses

import pytest

from offpath.bindings.errors import DeviceError
from offpath.bindings.mig import MIB, GpuModel, MigProfile, gpu_model, gpu_models

PROFILES = [(model, profile) for model in gpu_models().values() for profile in model.profiles]
IDS = [f"{model.name}-{profile.name}" for model, profile in PROFILES]


@pytest.mark.parametrize(("model", "profile"), PROFILES, ids=IDS)
def test_every_legal_start_lies_on_the_gpu(model: GpuModel, profile: MigProfile) -> None:
    assert profile.starts
    assert list(profile.starts) == sorted(set(profile.starts))
    assert profile.starts[0] == 0
    assert profile.starts[-1] + profile.memory_slices <= model.memory_slices
    assert 1 <= profile.compute_slices <= model.compute_slices


@pytest.mark.parametrize(("model", "profile"), PROFILES, ids=IDS)
def test_as_many_instances_fit_as_the_maximum_says(model: GpuModel, profile: MigProfile) -> None:
    """Greedily from the left over the legal starts, within the compute slices; the media extension exists once."""
    fitting, end = 0, 0
    for start in profile.starts:
        if start >= end and (fitting + 1) * profile.compute_slices <= model.compute_slices:
            fitting, end = fitting + 1, start + profile.memory_slices
    assert profile.max_instances == (1 if profile.name.endswith("+me") else fitting)


@pytest.mark.parametrize(("model", "profile"), PROFILES, ids=IDS)
def test_a_profiles_name_tells_its_compute_slices_and_roughly_its_memory(model: GpuModel, profile: MigProfile) -> None:
    compute, _, memory = profile.name.removesuffix("+me").partition("g.")
    assert int(compute) == profile.compute_slices
    assert profile.memory_bytes == pytest.approx(int(memory.removesuffix("gb")) * 1024 * MIB, rel=0.07)


@pytest.mark.parametrize("model", gpu_models().values(), ids=gpu_models())
def test_the_largest_profile_is_the_whole_gpu(model: GpuModel) -> None:
    largest = max(model.profiles, key=lambda profile: profile.memory_slices)
    assert (largest.compute_slices, largest.memory_slices) == (model.compute_slices, model.memory_slices)
    assert (largest.starts, largest.max_instances) == ((0,), 1)


@pytest.mark.parametrize("model", gpu_models().values(), ids=gpu_models())
def test_names_are_unique_and_found(model: GpuModel) -> None:
    assert len({profile.name for profile in model.profiles}) == len(model.profiles)
    assert gpu_model(model.name) is model
    for profile in model.profiles:
        assert model.profile(profile.name) is profile
    with pytest.raises(DeviceError, match="has no MIG profile '9g'"):
        model.profile("9g")


def test_the_models_are_these_six() -> None:
    assert sorted(gpu_models()) == ["A100-40GB", "A100-80GB", "A30-24GB", "B200-180GB", "H100-80GB", "H200-141GB"]
    with pytest.raises(DeviceError, match="no GPU model 'V100'"):
        gpu_model("V100")


def test_an_a100_is_cut_as_nvidia_prints_it() -> None:
    """NVIDIA MIG User Guide (v580), A100 40GB: "Supported MIG Profiles" and the `nvidia-smi mig -lgipp` example."""
    found = {
        p.name: (p.compute_slices, p.memory_slices, p.starts, p.max_instances) for p in gpu_model("A100-40GB").profiles
    }
    assert found == {
        "1g.5gb": (1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
        "1g.5gb+me": (1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
        "1g.10gb": (1, 2, (0, 2, 4, 6), 4),
        "2g.10gb": (2, 2, (0, 2, 4), 3),
        "3g.20gb": (3, 4, (0, 4), 2),
        "4g.20gb": (4, 4, (0,), 1),
        "7g.40gb": (7, 8, (0,), 1),
    }


def test_an_a30_is_cut_as_nvidia_prints_it() -> None:
    """NVIDIA MIG User Guide (v580), A30."""
    found = {
        p.name: (p.compute_slices, p.memory_slices, p.starts, p.max_instances) for p in gpu_model("A30-24GB").profiles
    }
    assert found == {
        "1g.6gb": (1, 1, (0, 1, 2, 3), 4),
        "1g.6gb+me": (1, 1, (0, 1, 2, 3), 1),
        "2g.12gb": (2, 2, (0, 2), 2),
        "2g.12gb+me": (2, 2, (0, 2), 1),
        "4g.24gb": (4, 4, (0,), 1),
    }


@pytest.mark.parametrize("name", ["A100-80GB", "H100-80GB", "H200-141GB", "B200-180GB"])
def test_the_larger_models_have_the_a100s_geometry(name: str) -> None:
    """Only names and bytes differ."""

    def shape(model: GpuModel) -> list[tuple[int, int, tuple[int, ...], int]]:
        return [(p.compute_slices, p.memory_slices, p.starts, p.max_instances) for p in model.profiles]

    assert shape(gpu_model(name)) == shape(gpu_model("A100-40GB"))


def test_records_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        gpu_model("A30-24GB").profiles[0].starts = ()  # type: ignore[misc]
