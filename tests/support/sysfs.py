"""A folder laid out as the kernel lays out /sys for RDMA devices and GPUs."""

from __future__ import annotations

from pathlib import Path

ROOT_A, ROOT_B = "devices/pci0000:00", "devices/pci0000:80"
NEAR_GPU, FAR_GPU = "0000:03:00.0", "0000:81:00.0"


class Sysfs:
    """Its devices are made one by one; what a driver would write is written by the test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "devices").mkdir()

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def link(self, link: str, target: str) -> None:
        (self.root / link).parent.mkdir(parents=True, exist_ok=True)
        (self.root / link).symlink_to(self.root / target)

    def card(
        self, device: str, pci: str, netdev: str, gids: dict[int, tuple[str, str]], state: str = "4: ACTIVE"
    ) -> None:
        """A device with one port; ``pci`` empty: a software device. Entries 0 to 7 of the GID table exist."""
        folder = f"{pci}/infiniband/{device}" if pci else f"devices/virtual/infiniband/{device}"
        for index in range(8):
            address, kind = gids.get(index, ("0000:" * 7 + "0000", ""))
            self.write(f"{folder}/ports/1/gids/{index}", address)
            if kind:
                self.write(f"{folder}/ports/1/gid_attrs/types/{index}", kind)
                self.write(f"{folder}/ports/1/gid_attrs/ndevs/{index}", netdev)
        self.write(f"{folder}/ports/1/state", state)
        if pci:
            self.link(f"{folder}/device", pci)
            self.write(f"{pci}/net/{netdev}/ifindex", "3")
        else:
            self.write(f"{folder}/parent", netdev)
        self.link(f"class/infiniband/{device}", folder)

    def gpu(self, pci: str) -> None:
        self.write(f"{pci}/vendor", "0x10de")
        self.write(f"{pci}/class", "0x030200")
        self.link(f"bus/pci/devices/{pci.rpartition('/')[2]}", pci)


def gid_table(ipv4: str) -> dict[int, tuple[str, str]]:
    """What a card shows that speaks both versions: the IPv4 address under v1 first, then under v2."""
    mapped = f"0000:0000:0000:0000:0000:ffff:{ipv4}"
    return {
        0: ("fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1"),
        1: ("fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2"),
        2: (mapped, "IB/RoCE v1"),
        5: (mapped, "RoCE v2"),
    }


def two_cards_and_their_gpus(sysfs: Sysfs) -> None:
    """mlx5_0 on a switch with a GPU; mlx5_1 on the other root, with a GPU in another slot."""
    sysfs.card("mlx5_0", f"{ROOT_A}/0000:00:01.0/0000:01:00.0/0000:02:00.0", "eth0", gid_table("0a63:0001"))
    sysfs.card("mlx5_1", f"{ROOT_B}/0000:80:01.0/0000:82:00.0", "eth1", gid_table("0a63:0101"))
    sysfs.gpu(f"{ROOT_A}/0000:00:01.0/0000:01:00.0/{NEAR_GPU}")
    sysfs.gpu(f"{ROOT_B}/0000:80:02.0/{FAR_GPU}")
