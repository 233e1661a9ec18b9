"""The tests are worth something only if they find bugs: each of these is planted, and must be found."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from random import Random

import pytest

from offpath.sched.errors import SchedError
from offpath.sched.placement.netpack import aggregation, batching, kernels, knapsack, plans, policy
from offpath.sched.placement.netpack.kernels import build
from offpath.sched.placement.netpack.policy import NetPack, NetPackPaper
from offpath.sched.placement.netpack.reservation import waiting_bound_s

from . import test_netpack_plans, test_netpack_policy
from .netpack_worlds import faults, in_use, requests
from .test_netpack_policy import PERIOD_S, RUN_S, stream

SHARE = "min(fastest / (hottest + 1), share["
KERNELS: dict[str, tuple[str, str]] = {
    "equation 1 rewards hot spots in a plan": (f"+= {SHARE}rack_of[s]])", f"-= {SHARE}rack_of[s]])"),
    "equation 1 rewards hot spots beside it": (f"+= {SHARE}rack])", f"-= {SHARE}rack])"),
    "the best share of an uplink counts": ("worst = min(worst, uplinks[at]", "worst = max(worst, uplinks[at]"),
    "a PS beside its worker adds a flow": ("beside = own if mark[s] == p + 1 else 1", "beside = 1"),
    "V begins at 0 everywhere": ("below = np.full(most + 1, NONE)", "below = np.zeros(most + 1)"),
    "a better plan of the same flows is erased": ("if here[g] > below[g]:", "if here[g] > NONE:"),
    "too few servers of a class are kept": ("most // max(1, n % (gpus + 1))", "most // max(1, 2 * (n % (gpus + 1)))"),
    "a server's flows do not count": ("(fastest - bandwidth) / (each + 1) - charge", "(fastest - bandwidth) - charge"),
    "the knapsack takes an item twice": (
        "for at in range(room, weight - 1, -1):\n                if best",
        "for at in range(weight, room + 1):\n                if best",
    ),
}
"""The text of the kernels, and what replaces it."""


@pytest.mark.parametrize("bug", KERNELS)
def test_a_bug_in_a_kernel_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = KERNELS[bug]
    source = inspect.getsource(kernels)
    assert source.count(old) == 1
    names: dict[str, object] = {"__name__": "planted"}
    exec(compile(source.replace(old, new), "planted", "exec"), names)
    functions = names["build"](lambda function: function)  # type: ignore[operator]
    for module in (plans, batching, knapsack):
        monkeypatch.setattr(module, "kernels", lambda compiled: functions)
    assert fails(test_netpack_plans.test_the_knapsack_is_that_of_brute_force, False) or fails(compare)


def compare() -> None:
    assert not any(test_netpack_plans.compared(seed)[1] for seed in range(60))


def fails(test: Callable[..., None], *arguments: object) -> bool:
    try:
        test(*arguments)
    except (AssertionError, IndexError, ValueError, SchedError):
        return True
    return False


def gives_back_too_much(patch: pytest.MonkeyPatch) -> None:
    right = plans.released
    patch.setattr(plans, "released", lambda seen, servers, wanted: right(seen, servers, wanted - 1))


def takes_ina_from_the_efficient(patch: pytest.MonkeyPatch) -> None:
    right = aggregation.efficiency
    patch.setattr(aggregation, "efficiency", lambda cluster, job: -right(cluster, job))


def forgets_reservations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(policy, "servers_for", lambda cluster, gpus, kept=(): ())


def admits_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batching, "admitted", lambda cluster, batch: (list(batch), {}))


def reserves_half_of_what_it_needs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(policy, "servers_for", lambda cluster, gpus, kept=(): tuple(range(gpus // 8)))


def conserved() -> bool:
    """Whether batches of many clusters are without faults."""
    for seed in range(40):
        random = Random(seed)
        cluster = in_use(random)
        batch = requests(random, 6, 12)
        try:
            if faults(cluster, batch, NetPackPaper().place_batch(cluster, batch)):
                return False
        except Exception:
            return False
    return True


def starts_in_time() -> bool:
    waited_s = stream(NetPack(patience=5), 120)
    return waited_s is not None and waited_s <= waiting_bound_s(5, 0, RUN_S, PERIOD_S, PERIOD_S)


BUGS: dict[Callable[[pytest.MonkeyPatch], None], Callable[[], bool]] = {
    gives_back_too_much: conserved,
    takes_ina_from_the_efficient: lambda: (
        not fails(test_netpack_policy.test_when_pat_runs_out_jobs_with_fewer_flows_lose_aggregation)
    ),
    forgets_reservations: starts_in_time,
    reserves_half_of_what_it_needs: starts_in_time,
    admits_everything: lambda: (
        not fails(
            test_netpack_policy.test_bad_input_is_refused_with_a_reason_and_others_are_placed,
            "netpack-paper",
            "a name twice",
        )
    ),
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_in_a_policy_is_found(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    assert BUGS[bug]()
    bug(monkeypatch)
    assert not BUGS[bug]()


def test_the_planted_kernels_are_built_from_the_shipped_text() -> None:
    assert inspect.getsource(build) in inspect.getsource(kernels)
