"""What NetPack's paper prints (§6.2 to 6.4): ranges in the text; its figures have no numbers."""

from __future__ import annotations

from typing import Any, Final

_TEXT: Final[dict[str, dict[str, list[float | None]]]] = {
    "testbed": {"saved": [0.13, 0.45], "de_gain": [0.13, 0.46]},
    "simulator": {"saved": [None, 0.78], "de_gain": [None, 1.4]},
}
"""Figures 7 and 8, real traces: JCT that NetPack saves of a baseline's, and how much higher its DE is."""
CORRELATION: Final = 0.98
"""Figure 6: of simulated and measured JCT."""
SCALE_SAVED: Final = 0.31
"""Figure 9, mean over 100 to 10 000 servers."""
PER_JOB_MS: Final = {100: 0.325, 10_000: 13.6}
"""Figure 10."""
BATCH_S: Final = 60.0
PAT_SAVED: Final = [0.30, 0.92]
"""Figure 11."""
NO_PAT_SAVED: Final = [0.87, 0.92]
OVERSUBSCRIBED_SAVED: Final = {1.0: 0.52, 20.0: 0.89}
"""Figure 12."""
COMB_SAVED: Final = [None, 0.63]
"""Figure 13, at most."""


def paper_of(figure: str, setting: str, x: float | None) -> dict[str, Any] | None:
    """The paper's numbers for a row, under the names of the row's own; None: it prints none. [least, greatest]."""
    if figure in ("7", "8"):
        name = "saved" if figure == "7" else "de_gain"
        return {name: _TEXT[setting.split()[0]][name]}
    if figure == "9":
        return {"saved": SCALE_SAVED}
    if figure == "10" and x in PER_JOB_MS:
        return {"per_job_ms": PER_JOB_MS[int(x)], "place_s": BATCH_S}
    if figure == "11":
        return {"saved": NO_PAT_SAVED if x == 0 else PAT_SAVED}
    if figure == "12" and x in OVERSUBSCRIBED_SAVED:
        return {"saved": OVERSUBSCRIBED_SAVED[x]}
    if figure == "13":
        return {"saved": COMB_SAVED}
    return {"correlation": CORRELATION} if figure == "6" else None
