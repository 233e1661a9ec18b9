"""Columns of the arrays of `kernel`: of entries (``E_`` integers, ``EF_`` floats), resources (``R_``, ``RF_``) and jobs
(``J_``, ``JF_``).
"""

from __future__ import annotations

from typing import Final

E_JOB: Final = 0
E_RES: Final = 1
E_NEXT: Final = 2
E_PREV: Final = 3
E_KIND: Final = 4
E_N: Final = 5
"""Of a leaf's uplink: flows that enter its ToR."""
E_WIDTH: Final = 6

EF_LOAD: Final = 0
EF_FLOWS: Final = 1
EF_NEW_LOAD: Final = 2
EF_NEW_FLOWS: Final = 3
EF_AT: Final = 4
"""Level up to which the new load is counted."""
EF_WIDTH: Final = 5

R_HEAD: Final = 0
R_BOTTLENECKS: Final = 1
"""Jobs whose bottleneck it is."""
R_TOUCHED: Final = 2
R_PLACE: Final = 3
"""Position in the heap; -1: not in it."""
R_USED_UP: Final = 4
"""Of a ToR, during a fill: its PAT is used up."""
R_WIDTH: Final = 5

RF_CAPACITY: Final = 0
RF_LOAD: Final = 1
RF_FLOWS: Final = 2
RF_LEVEL: Final = 3
"""Of a ToR: the rate up to which it aggregates each job; infinite while PAT is left."""
RF_LEFT: Final = 4
RF_ACTIVE: Final = 5
"""Flows of active jobs."""
RF_AT: Final = 6
RF_KEY: Final = 7
RF_NEW_LEVEL: Final = 8
RF_FASTEST: Final = 9
"""Largest rate of the filled jobs on it."""
RF_FROZE: Final = 10
"""Level at which it froze jobs; below 0: it froze none."""
RF_NEW_FLOWS: Final = 11
RF_BIAS: Final = 12
"""Raises a ToR's level by a hair: where a link and a ToR are used up together, the link comes first."""
RF_WIDTH: Final = 13

J_START: Final = 0
J_COUNT: Final = 1
J_STATE: Final = 2
J_BOTTLENECK: Final = 3
J_NEW_BOTTLENECK: Final = 4
J_HAS_INA: Final = 5
J_LOCAL: Final = 6
"""Flows from servers of the root's rack."""
J_ROOT: Final = 7
"""The PAT resource of the root."""
J_WIDTH: Final = 8

JF_RATE: Final = 0
JF_NEW_RATE: Final = 1
JF_BITS: Final = 2
"""Data of an iteration, in Gbit: d of Table 2."""
JF_WIDTH: Final = 3

IS_UNUSED: Final = 0
IS_HELD: Final = 1
"""Stays at its rate."""
IS_ACTIVE: Final = 2
IS_FROZEN: Final = 3
"""Filled."""

WORKER: Final = 0
PS: Final = 1
PS_AND_WORKER: Final = 2
LEAF: Final = 3
ROOT: Final = 4
TOR: Final = 5

EPSILON: Final = 1e-9
BIAS_GBPS: Final = 1e-9
INFINITE: Final = 1e300
"""A level that no job reaches; not a float infinity, which would make NaN of 0 flows."""
