"""GPUs as records, written out: A100 40GB and A30, NVIDIA MIG User Guide (`nvidia-smi mig -lgipp`)."""

from __future__ import annotations

from offpath.sched.gpu.geometry import GpuSpec, Profile

MIB = 1 << 20

A100_PROFILES = (
    Profile("1g.5gb", 1, 1, 4_864 * MIB, (0, 1, 2, 3, 4, 5, 6), 7),
    Profile("1g.5gb+me", 1, 1, 4_864 * MIB, (0, 1, 2, 3, 4, 5, 6), 1),
    Profile("1g.10gb", 1, 2, 9_856 * MIB, (0, 2, 4, 6), 4),
    Profile("2g.10gb", 2, 2, 9_856 * MIB, (0, 2, 4), 3),
    Profile("3g.20gb", 3, 4, 19_968 * MIB, (0, 4), 2),
    Profile("4g.20gb", 4, 4, 19_968 * MIB, (0,), 1),
    Profile("7g.40gb", 7, 8, 40_192 * MIB, (0,), 1),
)
A30_PROFILES = (
    Profile("1g.6gb", 1, 1, 5_836 * MIB, (0, 1, 2, 3), 4),
    Profile("1g.6gb+me", 1, 1, 5_836 * MIB, (0, 1, 2, 3), 1),
    Profile("2g.12gb", 2, 2, 11_672 * MIB, (0, 2), 2),
    Profile("2g.12gb+me", 2, 2, 11_672 * MIB, (0, 2), 1),
    Profile("4g.24gb", 4, 4, 23_344 * MIB, (0,), 1),
)


def a100(gpu: str = "gpu-0") -> GpuSpec:
    return GpuSpec(gpu, "A100-40GB", 7, 8, A100_PROFILES)


def a30(gpu: str = "gpu-0") -> GpuSpec:
    return GpuSpec(gpu, "A30-24GB", 4, 4, A30_PROFILES)


def is_legal(spec: GpuSpec, held: list[tuple[str, int]]) -> bool:
    """MIG's rules, told apart from the code: ``held`` is (profile, start) of each instance on the GPU."""
    used: list[int] = []
    compute = 0
    for name, start in held:
        (profile,) = [p for p in spec.profiles if p.name == name]
        if start not in profile.starts or sum(n == name for n, _ in held) > profile.max_instances:
            return False
        used += [start + i for i in range(profile.memory_slices)]
        compute += profile.compute_slices
    return (
        len(used) == len(set(used))
        and all(0 <= s < spec.memory_slices for s in used)
        and (compute <= spec.compute_slices)
    )
