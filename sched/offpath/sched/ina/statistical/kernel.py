"""Algorithm 1 (water filling over links and PAT together) over plain arrays, for some jobs or for all of them.

`build` creates the functions in two forms from this text, like `engine_kernel`: plain Python, or compiled by numba.

All active jobs rise at one level. A *resource* is an access link (0 … S-1), an uplink (S … S+R-1) or the PAT of a ToR
(S+R … S+2R-1). A heap orders them by the level at which they are used up at their current number of flows: a link then
freezes its active jobs, a ToR stops aggregating, and its active jobs' flows grow. So a fill costs
O(P log N), with P the total number of entries of the filled jobs.

A job has an *entry* on each of its resources; the entries of a resource form a list. Some jobs may be filled while all
others stay at their rates (`refill`): the result is then checked against the conditions that make a fair allocation
unique: each job has a used-up link on which its rate is the largest, and a ToR that is used up caps all its jobs at one
level. Other jobs that break a condition join, and the fill is repeated.

The arrays' columns are in `columns`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from offpath.sched.ina.statistical import columns as c

MANY: Final = 4
"""If more than one job of so many is affected, all are filled."""
FEW: Final = 16
"""Of fewer jobs, those that are not affected keep their rates."""


def build(jit: Callable[[Any], Any]) -> tuple[Any, Any, Any, Any]:
    """``(link, unlink, refill, remove)``, each processed by ``jit``."""

    @jit
    def link(job: int, e: Any, r: Any, j: Any) -> None:
        """Enter a job's entries in the lists of their resources."""
        for at in range(j[job, c.J_START], j[job, c.J_START] + j[job, c.J_COUNT]):
            res = e[at, c.E_RES]
            after = r[res, c.R_HEAD]
            e[at, c.E_NEXT] = after
            e[at, c.E_PREV] = -1
            if after >= 0:
                e[after, c.E_PREV] = at
            r[res, c.R_HEAD] = at

    @jit
    def unlink(job: int, e: Any, r: Any, j: Any) -> None:
        """The reverse of `link`."""
        for at in range(j[job, c.J_START], j[job, c.J_START] + j[job, c.J_COUNT]):
            before, after = e[at, c.E_PREV], e[at, c.E_NEXT]
            if before >= 0:
                e[before, c.E_NEXT] = after
            else:
                r[e[at, c.E_RES], c.R_HEAD] = after
            if after >= 0:
                e[after, c.E_PREV] = before

    @jit
    def rise_in(at: int, heap: Any, keys: Any, place: Any) -> None:
        """Restore the heap's order after the key at ``at`` became smaller."""
        res, key = heap[at], keys[at]
        while at > 0:
            parent = (at - 1) // 2
            if keys[parent] <= key:
                break
            heap[at], keys[at] = heap[parent], keys[parent]
            place[heap[at]] = at
            at = parent
        heap[at], keys[at] = res, key
        place[res] = at

    @jit
    def sink(at: int, size: int, heap: Any, keys: Any, place: Any) -> None:
        """The same after it became larger."""
        res, key = heap[at], keys[at]
        while True:
            child = 2 * at + 1
            if child >= size:
                break
            if child + 1 < size and keys[child + 1] < keys[child]:
                child += 1
            if keys[child] >= key:
                break
            heap[at], keys[at] = heap[child], keys[child]
            place[heap[at]] = at
            at = child
        heap[at], keys[at] = res, key
        place[res] = at

    @jit
    def due(res: int, rf: Any) -> float:
        """The level at which a resource is used up at its present active flows."""
        if rf[res, c.RF_ACTIVE] > 0.5:
            left: float = max(rf[res, c.RF_LEFT], 0.0)
            level: float = rf[res, c.RF_AT] + left / rf[res, c.RF_ACTIVE] + rf[res, c.RF_BIAS]
            return level
        return c.INFINITE

    @jit
    def change(res: int, level: float, flows: float, heap: Any, keys: Any, place: Any, rf: Any) -> None:
        """At ``level`` the active flows on a resource change by ``flows``.

        Fewer flows raise its key, and the heap keeps the smaller one: `rise` looks again when it comes to the top.
        """
        rf[res, c.RF_LEFT] -= rf[res, c.RF_ACTIVE] * (level - rf[res, c.RF_AT])
        rf[res, c.RF_AT] = level
        rf[res, c.RF_ACTIVE] += flows
        if flows > 0.0:
            key = due(res, rf)
            at = place[res]
            if key < keys[at]:
                keys[at] = key
                rise_in(at, heap, keys, place)

    @jit
    def set_flows(
        at: int, flows: int, level: float, heap: Any, keys: Any, place: Any, e: Any, ef: Any, rf: Any
    ) -> None:
        """From ``level`` on an active job has ``flows`` on the resource of its entry ``at``."""
        before = ef[at, c.EF_NEW_FLOWS]
        if flows != before:
            res = e[at, c.E_RES]
            ef[at, c.EF_NEW_LOAD] += before * (level - ef[at, c.EF_AT])
            ef[at, c.EF_AT] = level
            ef[at, c.EF_NEW_FLOWS] = flows
            rf[res, c.RF_NEW_FLOWS] += flows - before
            change(res, level, flows - before, heap, keys, place, rf)

    @jit
    def pass_on(
        job: int, tor: int, level: float, heap: Any, keys: Any, place: Any, e: Any, ef: Any, r: Any, rf: Any, j: Any
    ) -> None:
        """The ToR of a job's entry ``tor`` stops aggregating: the flows behind it grow (UpdateFlows, lines 10-16)."""
        start = j[job, c.J_START]
        set_flows(tor, 0, level, heap, keys, place, e, ef, rf)
        n = tor - start - j[job, c.J_TORS]
        if n > 0:  # a leaf, not the root
            leaf = start + j[job, c.J_LEAVES] + n - 1
            j[job, c.J_CROSSING] += e[leaf, c.E_N] - 1
            set_flows(leaf, e[leaf, c.E_N], level, heap, keys, place, e, ef, rf)
            set_flows(start + j[job, c.J_TORS] - 1, j[job, c.J_CROSSING], level, heap, keys, place, e, ef, rf)
        if r[j[job, c.J_ROOT], c.R_USED_UP] == 1:
            ps = start + j[job, c.J_PS]
            flows = j[job, c.J_LOCAL] + j[job, c.J_CROSSING]
            if e[ps, c.E_KIND] == c.PS_AND_WORKER:
                flows += 1
            set_flows(ps, flows, level, heap, keys, place, e, ef, rf)

    @jit
    def join(job: int, count: int, filled: Any, r: Any, j: Any) -> int:
        """Let a held job be filled, too; returns the new number of filled jobs."""
        filled[count] = job
        j[job, c.J_STATE] = c.IS_ACTIVE
        if j[job, c.J_BOTTLENECK] >= 0:
            r[j[job, c.J_BOTTLENECK], c.R_BOTTLENECKS] -= 1
        return count + 1

    @jit
    def close(done: int, count: int, filled: Any, e: Any, r: Any, rf: Any, j: Any, jf: Any) -> int:
        """Let all jobs join that a used-up ToR of a filled job caps: their shares of its PAT depend on each other."""
        while done < count:
            job = filled[done]
            done += 1
            for at in range(j[job, c.J_START], j[job, c.J_START] + j[job, c.J_COUNT]):
                res = e[at, c.E_RES]
                if e[at, c.E_KIND] != c.TOR or rf[res, c.RF_LEVEL] >= c.INFINITE or r[res, c.R_CLOSED] == 1:
                    continue
                r[res, c.R_CLOSED] = 1
                other = r[res, c.R_HEAD]
                while other >= 0:
                    each = e[other, c.E_JOB]
                    if j[each, c.J_STATE] == c.IS_HELD and jf[each, c.JF_RATE] >= rf[res, c.RF_LEVEL] * (
                        1.0 - c.EPSILON
                    ):
                        count = join(each, count, filled, r, j)
                    other = e[other, c.E_NEXT]
        return count

    @jit
    def prepare(
        count: int, filled: Any, touched: Any, heap: Any, keys: Any, place: Any, e: Any, ef: Any, r: Any, rf: Any,
        j: Any,
    ) -> int:  # fmt: skip
        """Empty the filled jobs' resources of them; returns how many resources they have."""
        seen = 0
        for n in range(count):
            job = filled[n]
            j[job, c.J_STATE] = c.IS_ACTIVE
            j[job, c.J_CROSSING] = max(j[job, c.J_TORS] - 1 - j[job, c.J_LEAVES], 0)
            for at in range(j[job, c.J_START], j[job, c.J_START] + j[job, c.J_COUNT]):
                res = e[at, c.E_RES]
                if r[res, c.R_TOUCHED] == 0:
                    r[res, c.R_TOUCHED] = 1
                    r[res, c.R_USED_UP] = 0
                    touched[seen] = res
                    seen += 1
                    rf[res, c.RF_LEFT] = rf[res, c.RF_CAPACITY] - rf[res, c.RF_LOAD]
                    rf[res, c.RF_NEW_FLOWS] = rf[res, c.RF_FLOWS]
                    rf[res, c.RF_ACTIVE] = 0.0
                    rf[res, c.RF_AT] = 0.0
                    rf[res, c.RF_NEW_LEVEL] = c.INFINITE
                    rf[res, c.RF_FASTEST] = -1.0
                    rf[res, c.RF_FROZE] = -1.0
                flows = ef[at, c.EF_FIRST]
                rf[res, c.RF_LEFT] += ef[at, c.EF_LOAD]
                rf[res, c.RF_NEW_FLOWS] += flows - ef[at, c.EF_FLOWS]
                rf[res, c.RF_ACTIVE] += flows
                ef[at, c.EF_NEW_LOAD] = 0.0
                ef[at, c.EF_NEW_FLOWS] = flows
                ef[at, c.EF_AT] = 0.0
        for n in range(seen):
            heap[n] = touched[n]
            keys[n] = due(touched[n], rf)
            place[touched[n]] = n
        for n in range(seen // 2 - 1, -1, -1):
            sink(n, seen, heap, keys, place)
        return seen

    @jit
    def freeze(
        job: int, level: float, bottleneck: int, heap: Any, keys: Any, place: Any, e: Any, ef: Any, rf: Any, j: Any,
        jf: Any,
    ) -> None:  # fmt: skip
        """The job's rate is ``level``."""
        j[job, c.J_STATE] = c.IS_FROZEN
        j[job, c.J_NEW_BOTTLENECK] = bottleneck
        jf[job, c.JF_NEW_RATE] = level
        for at in range(j[job, c.J_START], j[job, c.J_START] + j[job, c.J_COUNT]):
            res, flows = e[at, c.E_RES], ef[at, c.EF_NEW_FLOWS]
            ef[at, c.EF_NEW_LOAD] += flows * (level - ef[at, c.EF_AT])
            ef[at, c.EF_AT] = level
            rf[res, c.RF_FASTEST] = level
            if flows > 0.5:
                change(res, level, -flows, heap, keys, place, rf)

    @jit
    def rise(
        count: int, seen: int, racks: int, heap: Any, keys: Any, place: Any, e: Any, ef: Any, r: Any, rf: Any, j: Any,
        jf: Any,
    ) -> None:  # fmt: skip
        """Raise the level until all filled jobs are frozen (lines 2-9)."""
        first_tor = rf.shape[0] - racks
        while count > 0:
            res, level = heap[0], due(heap[0], rf)
            if keys[0] < level < c.INFINITE:
                keys[0] = level
                sink(0, seen, heap, keys, place)
                continue
            if level < c.INFINITE:
                level = keys[0]
                if res >= first_tor:
                    r[res, c.R_USED_UP] = 1
                    rf[res, c.RF_NEW_LEVEL] = level
                else:
                    rf[res, c.RF_FROZE] = level
                at = r[res, c.R_HEAD]
                while at >= 0:
                    job = e[at, c.E_JOB]
                    if j[job, c.J_STATE] == c.IS_ACTIVE:
                        if res >= first_tor:
                            pass_on(job, at, level, heap, keys, place, e, ef, r, rf, j)
                        else:
                            freeze(job, level, res, heap, keys, place, e, ef, rf, j, jf)
                            count -= 1
                    at = e[at, c.E_NEXT]
                rf[res, c.RF_LEFT] = 0.0
            seen -= 1  # it has no active flows any more
            heap[0], keys[0] = heap[seen], keys[seen]
            place[heap[0]] = 0
            sink(0, seen, heap, keys, place)

    @jit
    def violators(
        count: int, seen: int, racks: int, touched: Any, filled: Any, e: Any, r: Any, rf: Any, j: Any, jf: Any
    ) -> int:
        """Let the held jobs join whose conditions the fill broke; returns the new number of filled jobs."""
        first_tor = rf.shape[0] - racks
        for n in range(seen):
            res = touched[n]
            is_tor = res >= first_tor
            if is_tor and r[res, c.R_USED_UP] == 0:
                continue
            froze = rf[res, c.RF_FROZE] >= 0.0
            if not is_tor and not froze and r[res, c.R_BOTTLENECKS] == 0:
                continue
            is_full = rf[res, c.RF_LEFT] <= c.EPSILON * rf[res, c.RF_CAPACITY]
            cap = rf[res, c.RF_NEW_LEVEL] if is_tor else (rf[res, c.RF_FROZE] if froze else c.INFINITE)
            at = r[res, c.R_HEAD]
            while at >= 0:
                job = e[at, c.E_JOB]
                if j[job, c.J_STATE] == c.IS_HELD:
                    rate = jf[job, c.JF_RATE]
                    is_slow = not is_full or rate < rf[res, c.RF_FASTEST] * (1.0 - c.EPSILON)
                    if rate > cap * (1.0 + c.EPSILON) + 1e-12 or (j[job, c.J_BOTTLENECK] == res and is_slow):
                        count = join(job, count, filled, r, j)
                at = e[at, c.E_NEXT]
        return count

    @jit
    def join_all(count: int, filled: Any, r: Any, j: Any) -> int:
        """Let all held jobs be filled, too; returns their new number."""
        for job in range(len(j)):
            if j[job, c.J_STATE] == c.IS_HELD:
                count = join(job, count, filled, r, j)
        return count

    @jit
    def refill(
        count: int, jobs: int, racks: int, keeps: bool, filled: Any, touched: Any, heap: Any, keys: Any, place: Any,
        e: Any, ef: Any, r: Any, rf: Any, j: Any, jf: Any,
    ) -> tuple[int, float]:  # fmt: skip
        """Fill the first ``count`` jobs of ``filled``, and those that they affect; ``jobs``: how many there are. Where
        many are affected, all are filled at once instead of in several rounds.

        ``keeps``: make it the state; otherwise only the sum is wanted. Returns how many jobs were filled, and by how
        much the sum of d/v over all jobs grew; a job without a rate before adds all of its own, one that ends at rate
        0 adds `columns.INFINITE`.
        """
        done = 0
        for n in range(count):
            job = filled[n]
            if j[job, c.J_STATE] != c.IS_ACTIVE:
                j[job, c.J_STATE] = c.IS_ACTIVE
                if j[job, c.J_BOTTLENECK] >= 0:
                    r[j[job, c.J_BOTTLENECK], c.R_BOTTLENECKS] -= 1
        while True:
            count = close(done, count, filled, e, r, rf, j, jf)
            if count * MANY > max(jobs, FEW):
                count = join_all(count, filled, r, j)
            done = count
            seen = prepare(count, filled, touched, heap, keys, place, e, ef, r, rf, j)
            rise(count, seen, racks, heap, keys, place, e, ef, r, rf, j, jf)
            for n in range(seen):
                r[touched[n], c.R_TOUCHED] = 0
            if count < jobs:
                count = violators(count, seen, racks, touched, filled, e, r, rf, j, jf)
            if count == done:
                break
        for res in range(rf.shape[0] - racks, rf.shape[0]):
            r[res, c.R_CLOSED] = 0
        total = 0.0
        for n in range(count):
            job = filled[n]
            rate, before = jf[job, c.JF_NEW_RATE], jf[job, c.JF_RATE]
            total += jf[job, c.JF_BITS] / rate if rate > 0.0 else c.INFINITE
            if before > 0.0:
                total -= jf[job, c.JF_BITS] / before
            j[job, c.J_STATE] = c.IS_HELD
            if keeps:
                jf[job, c.JF_RATE] = rate
                j[job, c.J_BOTTLENECK] = j[job, c.J_NEW_BOTTLENECK]
                for at in range(j[job, c.J_START], j[job, c.J_START] + j[job, c.J_COUNT]):
                    ef[at, c.EF_LOAD] = ef[at, c.EF_NEW_LOAD]
                    ef[at, c.EF_FLOWS] = ef[at, c.EF_NEW_FLOWS]
            if j[job, c.J_BOTTLENECK] >= 0:
                r[j[job, c.J_BOTTLENECK], c.R_BOTTLENECKS] += 1
        if keeps:
            for n in range(seen):
                res = touched[n]
                rf[res, c.RF_LOAD] = rf[res, c.RF_CAPACITY] - rf[res, c.RF_LEFT]
                rf[res, c.RF_FLOWS] = rf[res, c.RF_NEW_FLOWS]
                rf[res, c.RF_LEVEL] = rf[res, c.RF_NEW_LEVEL]
        return count, total

    @jit
    def remove(job: int, filled: Any, e: Any, ef: Any, r: Any, rf: Any, j: Any, jf: Any) -> int:
        """Take a job's load away; returns how many jobs, the first of ``filled``, may now get more."""
        j[job, c.J_STATE] = c.IS_UNUSED
        if j[job, c.J_BOTTLENECK] >= 0:
            r[j[job, c.J_BOTTLENECK], c.R_BOTTLENECKS] -= 1
        unlink(job, e, r, j)
        count = 0
        for at in range(j[job, c.J_START], j[job, c.J_START] + j[job, c.J_COUNT]):
            res = e[at, c.E_RES]
            rf[res, c.RF_LOAD] -= ef[at, c.EF_LOAD]
            rf[res, c.RF_FLOWS] -= ef[at, c.EF_FLOWS]
            is_tor = e[at, c.E_KIND] == c.TOR
            if (is_tor and rf[res, c.RF_LEVEL] >= c.INFINITE) or (not is_tor and r[res, c.R_BOTTLENECKS] == 0):
                continue
            other = r[res, c.R_HEAD]
            while other >= 0:
                each = e[other, c.E_JOB]
                affected = j[each, c.J_BOTTLENECK] == res
                if is_tor:
                    affected = jf[each, c.JF_RATE] >= rf[res, c.RF_LEVEL] * (1.0 - c.EPSILON)
                if affected and j[each, c.J_STATE] == c.IS_HELD:
                    count = join(each, count, filled, r, j)
                other = e[other, c.E_NEXT]
            if is_tor:
                rf[res, c.RF_LEVEL] = c.INFINITE
        return count

    return link, unlink, refill, remove
