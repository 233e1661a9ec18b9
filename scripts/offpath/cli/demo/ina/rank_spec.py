"""The parameters of a rank of the demo. Without torch, because the parent process imports it too."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Spec:
    """One rank. ``directory``: of the job's files; ``pages``: the state-file folder that its host's helper watches;
    ``link``: the file with the rate of all links; ``seed``: of the training; ``first``: the first order;
    ``checkpoint_every``: steps, 0: none. A job with a checkpoint continues from it.
    """

    job: str
    rank: int
    ranks: int
    port: int
    directory: str
    state_files: str
    link: str
    seed: int
    first: dict[str, Any]
    checkpoint_every: int = 0

    def path(self, name: str) -> str:
        """A file of the job."""
        return os.path.join(self.directory, name)
