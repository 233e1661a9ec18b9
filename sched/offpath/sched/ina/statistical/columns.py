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
EF_FIRST: Final = 5
"""Flows while every ToR of the job aggregates; all of them, if it does not use aggregation."""
EF_WIDTH: Final = 6

R_HEAD: Final = 0
R_BOTTLENECKS: Final = 1
"""Jobs whose bottleneck it is."""
R_TOUCHED: Final = 2
R_USED_UP: Final = 3
"""Of a ToR, during a fill: its PAT is used up."""
R_CLOSED: Final = 4
"""Of a used-up ToR, during a refill: all jobs that it caps are filled."""
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
RF_NEW_LEVEL: Final = 7
RF_FASTEST: Final = 8
"""Largest rate of the filled jobs on it."""
RF_FROZE: Final = 9
"""Level at which it froze jobs; below 0: it froze none."""
RF_NEW_FLOWS: Final = 10
RF_BIAS: Final = 11
"""Raises a ToR's level by a hair: where a link and a ToR are used up together, the link comes first."""
RF_WIDTH: Final = 12

J_START: Final = 0
J_COUNT: Final = 1
J_STATE: Final = 2
J_BOTTLENECK: Final = 3
J_NEW_BOTTLENECK: Final = 4
J_LOCAL: Final = 5
"""Flows from servers of the root's rack."""
J_ROOT: Final = 6
"""The PAT resource of the root."""
J_PS: Final = 7
"""Position of its entries, from `J_START`: of the PS's access link, of the first leaf's uplink, of the first ToR. The
root's uplink is before the first ToR; the root is the first ToR, and the others are in the order of the leaves."""
J_LEAVES: Final = 8
J_TORS: Final = 9
J_CROSSING: Final = 10
"""Flows that enter the root's rack, during a fill."""
J_WIDTH: Final = 11

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
