"""Device code of the checks and of `offpath bench gpu`, as PTX text, and launches without a Python object per call.

The GPU emulator knows the entries by their names and runs functions of the host in their place.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from offpath.bindings.cuda.driver import Driver
from offpath.bindings.cuda.kernels import PTX as ZERO_CHECK

EMPTY, FILL, SAXPY, SPIN, FAULT = (f"offpath_{name}" for name in ("empty", "fill", "saxpy", "spin", "fault"))
PARAMETERS: Final = {EMPTY: "", FILL: "QQI", SAXPY: "QFQQ", SPIN: "Q", FAULT: "", "offpath_zero_check": "QQQ"}
"""Entry -> its parameters: Q u64, I u32, F f32."""
_TYPES: Final[dict[str, Any]] = {"Q": ctypes.c_uint64, "I": ctypes.c_uint32, "F": ctypes.c_float}

# Both loops are grid-stride loops: %rd1 index, %rd2 stride. `offpath_spin` polls the GPU's clock, which counts ns.
PTX: Final = b"""
.version 6.0
.target sm_52
.address_size 64

.visible .entry offpath_empty()
{
    ret;
}

.visible .entry offpath_fill(
    .param .u64 at,
    .param .u64 nbytes,
    .param .u32 value
)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;

    ld.param.u64 %rd0, [at];
    ld.param.u64 %rd3, [nbytes];
    ld.param.u32 %r0, [value];
    cvta.to.global.u64 %rd0, %rd0;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %rd1, %r1, %r2;
    cvt.u64.u32 %rd4, %r3;
    add.u64 %rd1, %rd1, %rd4;
    mul.wide.u32 %rd2, %r4, %r2;

FILL:
    setp.ge.u64 %p1, %rd1, %rd3;
    @%p1 ret;
    add.u64 %rd5, %rd0, %rd1;
    st.global.u8 [%rd5], %r0;
    add.u64 %rd1, %rd1, %rd2;
    bra FILL;
}

.visible .entry offpath_saxpy(
    .param .u64 count,
    .param .f32 a,
    .param .u64 x,
    .param .u64 y
)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<10>;

    ld.param.u64 %rd3, [count];
    ld.param.f32 %f0, [a];
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd5, [y];
    cvta.to.global.u64 %rd0, %rd0;
    cvta.to.global.u64 %rd5, %rd5;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %rd1, %r1, %r2;
    cvt.u64.u32 %rd4, %r3;
    add.u64 %rd1, %rd1, %rd4;
    mul.wide.u32 %rd2, %r4, %r2;

SAXPY:
    setp.ge.u64 %p1, %rd1, %rd3;
    @%p1 ret;
    shl.b64 %rd6, %rd1, 2;
    add.u64 %rd7, %rd0, %rd6;
    add.u64 %rd8, %rd5, %rd6;
    ld.global.f32 %f1, [%rd7];
    ld.global.f32 %f2, [%rd8];
    fma.rn.f32 %f3, %f0, %f1, %f2;
    st.global.f32 [%rd8], %f3;
    add.u64 %rd1, %rd1, %rd2;
    bra SAXPY;
}

.visible .entry offpath_spin(
    .param .u64 nanoseconds
)
{
    .reg .pred %p<2>;
    .reg .b64 %rd<6>;

    ld.param.u64 %rd0, [nanoseconds];
    mov.u64 %rd1, %globaltimer;

SPIN:
    mov.u64 %rd2, %globaltimer;
    sub.u64 %rd3, %rd2, %rd1;
    setp.lt.u64 %p1, %rd3, %rd0;
    @%p1 bra SPIN;
    ret;
}

.visible .entry offpath_fault()
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;

    mov.u64 %rd0, 0;
    mov.u32 %r0, 1;
    st.global.u32 [%rd0], %r0;
    ret;
}
\0"""


class Kernel:
    """An entry with its arguments, ready to be launched any number of times on one stream."""

    def __init__(self, driver: Driver, function: Any, name: str, values: tuple[Any, ...], stream: Any) -> None:
        self._launch = driver.api.cuLaunchKernel
        self._driver = driver
        self._function, self._stream = function, stream
        self._values = [_TYPES[kind](value) for kind, value in zip(PARAMETERS[name], values, strict=True)]
        addresses = [ctypes.addressof(value) for value in self._values]
        self._array = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        self._arguments = ctypes.addressof(self._array) if addresses else 0

    def launch(self, blocks: int = 1, threads: int = 1) -> None:
        """Submit. Raises: CudaError, CudaLost."""
        self._driver.call(
            "cuLaunchKernel", self._function, blocks, 1, 1, threads, 1, 1, 0, self._stream, self._arguments, 0
        )

    def launch_many(self, count: int) -> None:
        """Submit ``count`` times with the least work of Python; errors appear at the next wait."""
        launch, function, stream, arguments = self._launch, self._function, self._stream, self._arguments
        for _ in range(count):
            launch(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, 0)


class DeviceCode:
    """The entries above, and offpath's own check for zero, in the current context."""

    def __init__(self, driver: Driver) -> None:
        """Raises: CudaError: the driver compiles no PTX."""
        self._driver = driver
        self._modules = [driver.call("cuModuleLoadData", image) for image in (PTX, ZERO_CHECK)]

    def kernel(self, name: str, *values: Any, stream: Any = 0) -> Kernel:
        """An entry with its arguments. Raises: CudaError."""
        module = self._modules[name == "offpath_zero_check"]
        return Kernel(
            self._driver, self._driver.call("cuModuleGetFunction", module, name.encode()), name, values, stream
        )
