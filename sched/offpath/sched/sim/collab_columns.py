"""Codes, state and columns of `collab_kernel`'s arrays."""

from __future__ import annotations

from typing import Final

EVENT: Final = 0
"""All check-ins before the next event are taken: a round ends, a job comes, or the day does."""
FILLED: Final = 1
"""The request of ``JOB`` has all its devices; the last one is that before ``POSITION``."""
SUPPLY: Final = 2
"""The supply is to be counted anew at the check-in."""
ATOM: Final = 3
"""The candidates of ``ATOM_OF`` are unknown."""
ASK: Final = 4
"""The policy is to be asked about this one device: it is not steady."""
ARRIVAL: Final = 5
"""A job comes."""
ROUND: Final = 6
"""A round of ``JOB`` has ended. Either it was the last one, or Python has to ask for the next one."""

POSITION: Final = 0
LEFT: Final = 1
"""Check-ins until the supply is to be counted anew; that one included."""
COUNTED: Final = 2
"""The check-in there is in the supply already."""
FORCED: Final = 3
"""The number of the job that gets the device at ``POSITION``, `NOBODY`, or `OPEN`: by candidates."""
NEXT_NS: Final = 4
JOB: Final = 5
ATOM_OF: Final = 6
TOUCHED: Final = 7
"""How many jobs got devices since the policy was told."""
IS_STALE: Final = 8
"""Of `forward`: jobs have to be weighed again."""
ASKED: Final = 9
"""Of `forward`: the job whose next round begins at ``NEXT_NS``, or `NOBODY`."""
DRAWS: Final = 10
"""How many draws are due, see ``draws`` of `forward`."""
ORDER: Final = 11
"""Of jobs, see `BY_ARRIVAL` and those below."""
HAS_TIERS: Final = 12
IS_WATCHED: Final = 13
"""Python wants to see every round that ends."""
STATE: Final = 14
"""Length of the state."""

BY_ARRIVAL: Final = 0
BY_REMAINING: Final = 1
BY_RANK: Final = 2
BY_SCARCITY: Final = 3
"""Policy `venn`."""
BY_OWNER: Final = 4
"""Algorithm 1 across groups, remaining demand within a group."""

NOBODY: Final = -1
OPEN: Final = -2
UNKNOWN: Final = -3
"""First of an atom's candidates: not asked yet."""

# Columns of jobs, by number of the job. Of ``leases`` and ``heap`` each job has the part from J_FIRST and J_HEAP on.
J_DEMAND: Final = 0
J_REMAINING: Final = 1
J_WORK: Final = 2
J_ANSWERS_AT: Final = 3
"""Answers that end the round."""
J_DEADLINE_NS: Final = 4
J_ENOUGH_NS: Final = 5
"""When so many have answered; `NEVER`: too few will."""
J_ROUND: Final = 6
"""The one that runs, counted from 0 over the job's requests; `NO_ROUND`."""
J_SPEED: Final = 7
"""Row of the speeds."""
J_LEAST_SPEED: Final = 8
J_BELOW_SPEED: Final = 9
J_IS_TOUCHED: Final = 10
J_FIRST: Final = 11
J_HEAP: Final = 12
J_HEAP_SIZE: Final = 13
J_WIDTH: Final = 14
NO_ROUND: Final = -2

# More columns of jobs, for `forward`.
J_TOLD: Final = 14
"""What remained when the policy was last told; above 0: the job waits."""
J_LATER: Final = 15
"""Demand of later rounds, if their number is known."""
J_RANK: Final = 16
J_BIT: Final = 17
J_TIE: Final = 18
"""Its place by arrival and name."""
J_LASTS_NS: Final = 19
"""From a request to its deadline."""
J_LAST_ROUND: Final = 20
J_SUBMITTED_NS: Final = 21
J_FILLED_NS: Final = 22
J_ROUNDS: Final = 23
"""Completed."""
J_WANTED: Final = 24
"""Rounds of the whole job."""
J_ROUNDS_KNOWN: Final = 25
"""To the policy; 0: it does not know."""
J_TIERS: Final = 26
"""V of §4.3; 0: it has no tiers."""
J_HAS_TIER: Final = 27
"""The present request is restricted to one."""
J_SAMPLES: Final = 28
"""Responses learnt, ever."""
J_IS_LEARNT: Final = 29
"""Each tier has enough of them."""
J_DONE: Final = 30
"""Answers of the last round."""
J_IS_COMPLETE: Final = 31
"""The last round was."""
J_ASSIGNED: Final = 32
J_WASTED: Final = 33
J_ABORTED: Final = 34
J_SCHEDULE_NS: Final = 35
J_RESPONSE_NS: Final = 36
J_LONG_WIDTH: Final = 37

# Rows of groups. Of the first two a column is a requirement's bit, of the others a place in the order: scarcest first.
G_SIZE: Final = 0
"""Check-ins that it can use."""
G_QUEUE: Final = 1
"""Jobs that wait."""
G_PLACE: Final = 2
G_BIT: Final = 3
G_SHARE: Final = 4
G_INSIDE: Final = 5
G_IS_TAKEN: Final = 6
G_HEIGHT: Final = 7

# Rows of atoms; from A_ABLE on one for each requirement's bit: whether the atom meets it.
A_SUPPLY: Final = 0
A_OWNER: Final = 1
"""Place of a group."""
A_ABLE: Final = 2

# Rows of a job's samples.
S_SPEED: Final = 0
"""Place of the speed among all that there are."""
S_RESPONSE_NS: Final = 1
S_HEIGHT: Final = 2

# Rows of a job's tiers, by tier, see `is_learnt`.
C_BELOW: Final = 0
C_SPEED: Final = 1
C_HEIGHT: Final = 2

EXACT: Final = 2**53
"""Integers below it are exact as a float."""
ERROR: Final = 1e-6
"""More than the relative error of a speed-up that was computed in another order."""
RANKS: Final = 1 << 32

# Rows of leases; a job's are in the order in which they began.
L_BEGAN_NS: Final = 0
L_ANSWER_NS: Final = 1
L_KIND: Final = 2
L_HEIGHT: Final = 3

# Columns of devices.
D_KIND: Final = 0
D_UNIT_NS: Final = 1
D_NETWORK_NS: Final = 2
D_WORKED: Final = 3
"""The last day on which it got a job."""
D_FREE_NS: Final = 4
D_HELD_BY: Final = 5
"""Number of a job."""
D_HELD_ROUND: Final = 6
D_WIDTH: Final = 7
