"""The kernel of `acceptance`."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from offpath.host_helper import Helper

helper = Helper()


@helper.kernel("twice", demand=14, inputs={"values": ("fp64", [-1])}, outputs={"doubled": ("fp64", [-1])})
def twice(values: NDArray[Any]) -> NDArray[Any]:
    """Each value doubled."""
    return values * 2
