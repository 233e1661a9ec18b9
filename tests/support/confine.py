"""What the unit's sandbox takes from a process and can be taken here: system calls, and making memory executable."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Sequence

_PR_SET_MDWE = 65
_MDWE_REFUSE_EXEC_GAIN = 1
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM


def confine(calls: Sequence[str], *, deny_exec: bool = True) -> None:
    """From here on only ``calls``; another one gets EPERM, as with SystemCallErrorNumber=. ``deny_exec``: as
    MemoryDenyWriteExecute= does. Raises: OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if deny_exec and libc.prctl(_PR_SET_MDWE, _MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) and ctypes.get_errno() != errno.EINVAL:
        raise OSError(ctypes.get_errno(), "PR_SET_MDWE")  # kernels before 6.3 have none
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    seccomp.seccomp_rule_add.argtypes = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint)
    seccomp.seccomp_load.argtypes = (ctypes.c_void_p,)
    context = seccomp.seccomp_init(_REFUSE)
    for name in calls:
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:  # others are of another architecture
            seccomp.seccomp_rule_add(context, _ALLOW, number, 0)
    if (said := seccomp.seccomp_load(context)) != 0:
        raise OSError(-said, "seccomp_load")
