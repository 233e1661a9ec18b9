"""What HIRE's paper prints (§6.3 to 6.6): numbers in the text; its figures have no others."""

from __future__ import annotations

from typing import Any, Final

from offpath.cli.hire.cells import base_name

SATISFIED: Final = {False: 0.92, True: 0.88}
"""Of `hire` at μ = 1, by heterogeneity of the switches (figures 8a and 8f)."""
BEST_BASELINE: Final = {False: 0.69, True: 0.57}
ONE_DECISION_LESS: Final = {False: 0.11, True: 0.18}
"""How far HIRE with one decision for each job is behind."""
DETOURS: Final = 0.6
"""Figure 8c: less than that."""
DETOURS_SAVED: Final = 0.24
"""Of every baseline's, at least."""
AHEAD_AT_5_PERCENT: Final = 0.08
TAIL_SAVED: Final = (0.5, 0.6)
"""Of the best baseline's tail latency (figures 8e and 8j)."""
BELOW_1_S: Final = 0.9
"""Part of HIRE's allocations."""


def paper_of(policy: str, mu: float, is_heterogeneous: bool) -> dict[str, Any] | None:
    """The paper's numbers for a row, under the names of the row's own; [least, greatest]. None: it prints none."""
    if mu != 1 or policy in ("hire-prose", "hire-paper", "hire-code"):
        return None
    best = BEST_BASELINE[is_heterogeneous]
    if policy == "hire":
        detours = {} if is_heterogeneous else {"detours": [None, DETOURS]}
        return {"inc_satisfied": SATISFIED[is_heterogeneous], **detours, "below_1_s": BELOW_1_S}
    if policy == "hire-one-flavor":
        least = round(SATISFIED[is_heterogeneous] - ONE_DECISION_LESS[is_heterogeneous], 2)
        return {"inc_satisfied": least if is_heterogeneous else [least, None]}
    if policy == "k8++/concurrent" and not is_heterogeneous:
        return {"inc_satisfied": best}
    if base_name(policy) in ("k8++", "yarn++", "sparrow++", "coco++"):
        return {"inc_satisfied": [None, best]}
    return None
