"""How HIRE's appendix A is read. The printed text, the authors' simulator and the stated goals differ; each difference
is one field here.

| field | printed | authors' simulator | `hire`, and why |
| --- | --- | --- | --- |
| balance | 1 − stddv(u) | 1 − stddv(u) | stddv(u): goal (1) is balance, and the printed term prefers imbalance |
| no_rest | d ⊘ 0 is undefined | the same | a dimension of which nothing is left and nothing is wanted does not count |
| distance | inverse to the hops | ToR dearest | ToR dearest; the prose says the opposite (`hire-prose`) |
| gain | norm(Γ) is added | exp(Γ/max)/e, 1 without gain | Γ is a gain, so it lowers the cost |
| preference | 1 below, then 0 rising to 3 | 3 falling to 0 | 3 falling to 0: it does not jump |
| preference_on | every flavor | every flavor | flavors on servers: so waiting makes the fallback acceptable |
| flavor_cost | ratio to the largest | rescaled to ½ … 1 | ratio |
| server_interference | 1 | 0.01 | 1 |
| postpone | 5 + Φ_delay | 8, Φ_delay added | 5 + Φ_delay |
| flavor_postpone | 3 + Φ_w | 4 (Φ_w is dead code) | 3 + Φ_w |
| most_connected | all | 10 | all |
| needs_room | no | no | a flavor is offered only if each of its groups has places for all its tasks |
| passes | 1 | 1 | so many networks in a round, so that a node gets several tasks and a job all its flavors |
| is_whole | no | no | the tasks of a group on switches start together or not at all |
| is_switch_first | no | no | tasks on servers come after the job's first flavor of the round, near its switches |
| reach | 0 | 0 | 25 for each level from the job's switches up to one above the server: those are its detours |
| is_one_top | no | no | one switch above all servers saves a job all detours; a second one is lacking to others |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


class Distance(StrEnum):
    """Φ_ToR."""

    FAR_IS_DEAR = "far-is-dear"
    INVERSE = "inverse"
    """1 / hops."""
    TOR_IS_DEAR = "tor-is-dear"
    """(top − level) / top."""


class Gain(StrEnum):
    """How Γ enters Φ_loc."""

    LOWERS = "lowers"
    PRINTED = "printed"
    EXPONENTIAL = "exponential"


class Preference(StrEnum):
    """Φ_pref."""

    FALLING = "falling"
    PRINTED = "printed"


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of the cost model. Penalties are in hundredths, as all costs are."""

    name: str
    is_balance_rewarded: bool = True
    is_nothing_left_out: bool = True
    distance: Distance = Distance.TOR_IS_DEAR
    gain: Gain = Gain.LOWERS
    preference: Preference = Preference.FALLING
    is_preference_on_servers_only: bool = True
    is_flavor_cost_rescaled: bool = False
    server_interference: int = 100
    postpone: int = 500
    flavor_postpone: int = 300
    has_flavor_delay: bool = True
    """Φ_w is added to ``flavor_postpone``."""
    most_connected: int | None = None
    needs_room: bool = True
    passes: int = 8
    """At most so many networks are solved in a round; 1: at most one task per node and one flavor per job."""
    is_whole: bool = True
    is_switch_first: bool = True
    """In a round the tasks on servers of a job with an open choice come after its first flavor is decided."""
    reach: int = 25
    """A server costs so much more for each level that its job climbs from its switches to it (`locality.climbs`)."""
    is_one_top: bool = True
    """For a job that has one of the highest switches further ones are the dearest (Φ_ToR)."""
    is_reserving: bool = True
    """Switches are kept free for a group that waits long and has no other implementation (`reservations`)."""


HIRE: Final = Reading("hire")
"""Corrected. Core switches are the cheapest: from there all servers are below, and switches that have servers stay free
for services that need such."""
HIRE_PROSE: Final = replace(HIRE, name="hire-prose", distance=Distance.FAR_IS_DEAR)
"""As `HIRE`, but Φ_ToR as the prose of appendix A has it: switches far from servers are dear."""
HIRE_PAPER: Final = Reading(
    "hire-paper",
    is_balance_rewarded=False,
    is_nothing_left_out=False,
    distance=Distance.INVERSE,
    gain=Gain.PRINTED,
    preference=Preference.PRINTED,
    is_preference_on_servers_only=False,
    needs_room=False,
    passes=1,
    is_switch_first=False,
    is_one_top=False,
    is_reserving=False,
    reach=0,
    is_whole=False,
)
"""As printed."""
HIRE_CODE: Final = Reading(
    "hire-code",
    is_balance_rewarded=False,
    is_nothing_left_out=False,
    distance=Distance.TOR_IS_DEAR,
    gain=Gain.EXPONENTIAL,
    is_preference_on_servers_only=False,
    is_flavor_cost_rescaled=True,
    server_interference=1,
    postpone=800,
    flavor_postpone=400,
    has_flavor_delay=False,
    most_connected=10,
    needs_room=False,
    passes=1,
    is_switch_first=False,
    is_one_top=False,
    is_reserving=False,
    reach=0,
    is_whole=False,
)
"""As the authors' public simulator."""
READINGS: Final = {each.name: each for each in (HIRE, HIRE_PROSE, HIRE_PAPER, HIRE_CODE)}
