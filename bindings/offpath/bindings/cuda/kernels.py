"""Device code of offpath's own, as PTX text: the driver compiles it, so no toolkit is needed.

``offpath_zero_check`` adds to a counter how many 8-byte words of a range differ from zero. (The GPU emulator counts
bytes.)
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any, Final

from offpath.bindings.cuda.context import Context
from offpath.bindings.errors import CudaError

logger = logging.getLogger(__name__)
_THREADS: Final = 256
_MOST_BLOCKS: Final = 1024
_PIECE_BYTES: Final = 1 << 20
WORD_BYTES: Final = 8

# A grid-stride loop. %rd1 address of the next word, %rd3 index, %rd4 words, %rd5 stride, %rd7 this thread's count.
PTX: Final = b"""
.version 6.0
.target sm_52
.address_size 64

.visible .entry offpath_zero_check(
    .param .u64 at,
    .param .u64 nbytes,
    .param .u64 counter
)
{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<16>;

    ld.param.u64 %rd0, [at];
    ld.param.u64 %rd4, [nbytes];
    shr.u64 %rd4, %rd4, 3;
    ld.param.u64 %rd6, [counter];
    cvta.to.global.u64 %rd0, %rd0;
    cvta.to.global.u64 %rd6, %rd6;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %rd3, %r1, %r2;
    cvt.u64.u32 %rd8, %r3;
    add.u64 %rd3, %rd3, %rd8;
    mul.wide.u32 %rd5, %r4, %r2;
    mov.u64 %rd7, 0;

LOOP:
    setp.ge.u64 %p1, %rd3, %rd4;
    @%p1 bra DONE;
    shl.b64 %rd9, %rd3, 3;
    add.u64 %rd1, %rd0, %rd9;
    ld.global.u64 %rd10, [%rd1];
    setp.ne.u64 %p2, %rd10, 0;
    @%p2 add.u64 %rd7, %rd7, 1;
    add.u64 %rd3, %rd3, %rd5;
    bra LOOP;

DONE:
    setp.eq.u64 %p3, %rd7, 0;
    @%p3 ret;
    atom.global.add.u64 %rd11, [%rd6], %rd7;
    ret;
}
\0"""


class ZeroCheck:
    """Whether a range of the device's memory is zero: counted by a kernel, or read back if the driver compiles no
    PTX. It allocates nothing, so that no memory escapes the check."""

    def __init__(self, context: Context, stream: Any) -> None:
        """Raises: CudaLost."""
        self._driver = context.driver
        self._stream = stream
        self._function: Any = None
        try:
            module = self._driver.call("cuModuleLoadData", PTX)
            self._function = self._driver.call("cuModuleGetFunction", module, b"offpath_zero_check")
        except CudaError as fault:  # 221 to 223: no compiler, switched off, or too old
            logger.info("scrubs are checked by reading back: %s", fault)

    def is_zero(self, pointer: int, nbytes: int) -> bool:
        """``nbytes``: a multiple of 8, at least 16. Blocks until the stream's earlier work is done. If the range is not
        zero, its first bytes are undefined afterwards. Raises: CudaError, CudaLost."""
        return (
            self._count(pointer, nbytes) == 0 if self._function is not None else self._is_read_as_zero(pointer, nbytes)
        )

    def _count(self, pointer: int, nbytes: int) -> int:
        """The range's first word counts for the rest: if it is zero afterwards, it and all others were."""
        call = self._driver.call
        rest = nbytes - WORD_BYTES
        blocks = max(1, min(_MOST_BLOCKS, (rest // WORD_BYTES + _THREADS - 1) // _THREADS))
        values = (pointer + WORD_BYTES, rest, pointer)
        types = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
        call("cuLaunchKernel", self._function, blocks, 1, 1, _THREADS, 1, 1, 0, self._stream, (values, types), 0)
        call("cuStreamSynchronize", self._stream)
        found = ctypes.c_uint64(0)
        call("cuMemcpyDtoH", ctypes.addressof(found), pointer, WORD_BYTES)
        return found.value

    def _is_read_as_zero(self, pointer: int, nbytes: int) -> bool:
        self._driver.call("cuStreamSynchronize", self._stream)
        zeros = memoryview(bytes(_PIECE_BYTES))
        room = (ctypes.c_uint8 * _PIECE_BYTES)()
        view = memoryview(room).cast("B")
        for start in range(0, nbytes, _PIECE_BYTES):
            size = min(_PIECE_BYTES, nbytes - start)
            self._driver.call("cuMemcpyDtoH", ctypes.addressof(room), pointer + start, size)
            if view[:size] != zeros[:size]:
                return False
        return True
