"""How many descriptors a process may have open."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger(__name__)


def allow_files(count: int) -> None:
    """Raise this process's limit of descriptors to ``count``, as far as it may be raised; if it may not, log that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError) as fault:  # a container may refuse it
        logger.warning("limit of descriptors: %d, not %d: %s", soft, wanted, fault, extra={"code": "few_descriptors"})
