"""The process that speaks to Ray for the engine `ray`: a child of the controller, see `ray_child`.

``PYTHON -I ray_driver.py ADDRESS FOLDER``; ADDRESS: of Ray's GCS, or ``auto``; FOLDER: of the supervisors' records. A
line of JSON on stdin is a call, ``{"id": …, "call": …, "argument": …}``; the answer on stdout has its id and
``value``, or ``fault`` (``refused``, ``unavailable``, ``missing``, ``broken``) and ``text``. The first line is the
answer 0: connected or not. The process ends with stdin. Ray may end it at any time, as it does when the GCS is lost:
nothing is kept here.

What the cluster knows of jobs, beside the supervisors (`ray_supervisor`): an entry per job in the GCS's key-value
store, written before a supervisor is asked to start it. A job whose first node is lost is therefore known as lost,
also to a controller that comes later.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, Final

NAMESPACE: Final = "offpath"
_KEYS: Final = b"offpath-jobs"
_SUPERVISOR: Final = "supervisor:"
_ANSWER_S: Final = 5.0
"""Limit for the reports of all supervisors."""
_START_S: Final = 20.0
"""Limit for a supervisor's process and its answer."""
_THREADS: Final = 8
_HERE: Final = Path(__file__).parent


class Refused(Exception):
    """The job is not taken."""


class Unavailable(Exception):
    """Ray, or a part of it, does not answer."""


class Cluster:
    """The Ray cluster. Every method is a call of the controller."""

    def __init__(self, ray: Any, folder: str) -> None:
        from ray.experimental import internal_kv
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray, self._folder, self._kv = ray, folder, internal_kv
        self.faults = (ray.exceptions.RayError, RuntimeError, ValueError, OSError)
        """What Ray's calls raise: its documentation names the first; its client code raises the others too."""
        self._affinity = NodeAffinitySchedulingStrategy
        self._source = (_HERE / "ray_process.py").read_text()
        self._actor = ray.remote(num_cpus=0, num_gpus=0, max_restarts=0, max_task_retries=0)(_supervisor(ray))
        self._entries = self._read_entries()

    # -- nodes ----------------------------------------------------------------------------------------------------
    def inventory(self, _: object = None) -> list[dict[str, Any]]:
        """The nodes as `NodeInfo` has them, and their ids."""
        draining = self._draining()
        return by_name([_node(each, draining) for each in self._ray.nodes()])

    def _draining(self) -> Iterable[str]:
        from ray._private.state import state

        return state.get_draining_nodes() if hasattr(state, "get_draining_nodes") else ()

    # -- supervisors ----------------------------------------------------------------------------------------------
    def _supervisor(self, node: dict[str, Any]) -> Any:
        """The node's, made if it has none."""
        return self._actor.options(
            name=_SUPERVISOR + node["id"], namespace=NAMESPACE, lifetime="detached", get_if_exists=True,
            scheduling_strategy=self._affinity(node["id"], soft=False), max_concurrency=100_000,
        ).remote(self._folder, node["name"], self._source)  # fmt: skip

    def _supervisors(self, entries: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """By node name: those that live, and one on every living node that has jobs."""
        named = set(self._ray.util.list_named_actors())
        with_jobs = {entry["places"][0][0] for entry in entries.values()}
        return {
            node["name"]: self._supervisor(node)
            for node in self.inventory()
            if node["state"] != "down" and (node["name"] in with_jobs or _SUPERVISOR + node["id"] in named)
        }

    def jobs(self, _: object = None) -> dict[str, Any]:
        """``jobs``: reports; ``silent``: jobs of supervisors that do not answer now: nothing is known of them."""
        entries = dict(self._entries)
        supervisors = self._supervisors(entries)
        asked = {actor.report.remote(): name for name, actor in supervisors.items()}
        done, _late = self._ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_S) if asked else ([], [])
        jobs: dict[str, dict[str, Any]] = {}
        answered = set()
        for ref in done:
            try:
                reports = {job["identity"]: job for job in self._ray.get(ref)}
                answered.add(asked[ref])
            except self._ray.exceptions.RayError:
                continue  # it died just now: the next look finds its node without one, or no node
            for identity, report in reports.items():
                first = entries[identity]["places"][0][0] if identity in entries else asked[ref]
                if first == asked[ref]:  # the supervisor of earlier places still has it as lost
                    jobs[identity] = report
        for identity in jobs.keys() - self._entries.keys():  # the GCS lost its entries with Ray's head
            self._write_entry(identity, jobs[identity]["places"])
        silent = []
        for identity, entry in entries.items():
            node = entry["places"][0][0]
            if node in supervisors and node not in answered:
                silent.append({"identity": identity, "places": entry["places"]})
            elif node not in supervisors:
                jobs[identity] = {
                    "identity": identity, "state": "lost", "reason": f"node {node} is lost", "code": None,
                    "has_begun": True, "places": entry["places"],
                }  # fmt: skip
        return {"jobs": list(jobs.values()), "silent": silent}

    # -- jobs -----------------------------------------------------------------------------------------------------
    def start(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Start a job, or find it; its report."""
        identity = spec["identity"]
        known = self.jobs()
        for job in known["jobs"]:
            if job["identity"] == identity and (job["has_begun"] or job["state"] != "lost"):
                return dict(job)
        if any(job["identity"] == identity for job in known["silent"]):
            raise Unavailable(f"the supervisor of job {identity} does not answer")
        nodes = {node["name"]: node for node in self.inventory()}
        for name, count, _, model in spec["places"]:
            _check(nodes, name, count, model)
        spec["node_ids"] = [nodes[place[0]]["id"] for place in spec["places"]]
        self._write_entry(identity, spec["places"])
        actor = self._supervisor(nodes[spec["places"][0][0]])
        report = dict(self._ray.get(actor.start.remote(spec), timeout=_START_S))
        if "refused" in report:
            self._drop_entry(identity)
            raise Refused(report["refused"])
        return report

    def cancel(self, identity: str) -> bool:
        """False: unknown."""
        return self._tell(identity, "cancel")

    def forget(self, identity: str) -> bool:
        """False: it has not ended."""
        entry = self._entries.get(identity)
        has_ended = entry is None or self._tell(identity, "forget")
        if entry is not None and has_ended:
            self._drop_entry(identity)
        return has_ended

    def _tell(self, identity: str, method: str) -> bool:
        entry = self._entries.get(identity)
        if entry is None:
            return False
        node = entry["places"][0][0]
        actor = self._supervisors({identity: entry}).get(node)
        if actor is None:
            return True  # lost with its node
        return bool(self._ray.get(getattr(actor, method).remote(identity), timeout=_START_S))

    # -- the GCS's entries: only this process writes them --------------------------------------------------------
    def _read_entries(self) -> dict[str, dict[str, Any]]:
        found = {}
        for key in self._kv._internal_kv_list(b"", namespace=_KEYS):
            if (value := self._kv._internal_kv_get(key, namespace=_KEYS)) is not None:
                found[bytes(key).decode()] = dict(json.loads(value))
        return found

    def _write_entry(self, identity: str, places: list[Any]) -> None:
        entry = {"places": places}
        self._kv._internal_kv_put(identity.encode(), json.dumps(entry).encode(), overwrite=True, namespace=_KEYS)
        self._entries[identity] = entry

    def _drop_entry(self, identity: str) -> None:
        self._kv._internal_kv_del(identity.encode(), namespace=_KEYS)
        self._entries.pop(identity, None)


def by_name(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A node of each name; of several the one that lives. Several that live are not usable: their name is ambiguous."""
    found = {node["name"]: node for node in nodes if node["state"] == "down"}
    living = Counter(node["name"] for node in nodes if node["state"] != "down")
    for node in nodes:
        if node["state"] != "down":
            found[node["name"]] = node
            if living[node["name"]] > 1:
                reason = "several nodes have this name: give each its own label offpath.io/host"
                found[node["name"]] = {**node, "state": "down", "id": "", "reason": reason}
    return list(found.values())


def _node(node: dict[str, Any], draining: Iterable[str]) -> dict[str, Any]:
    """As `NodeInfo` has it, and ``id``: Ray's."""
    labels, resources = node.get("Labels") or {}, node.get("Resources") or {}
    model = labels.get("ray.io/accelerator-type", "")
    if not model:
        types = [key.partition(":")[2] for key in resources if key.startswith("accelerator_type:")]
        model = types[0] if len(types) == 1 else ""
    state, reason = "ready", ""
    if not node["Alive"]:
        state, reason = "down", node.get("DeathReasonMessage") or "Ray has no contact to it"
    elif node["NodeID"] in draining:
        state, reason = "drained", "Ray drains it"
    return {
        "id": node["NodeID"], "name": labels.get("offpath.io/host") or node["NodeManagerHostname"].split(".")[0],
        "gpus": int(resources.get("GPU", 0)), "model": model, "switch": labels.get("offpath.io/switch", ""),
        "state": state, "reason": reason,
    }  # fmt: skip


def _check(nodes: dict[str, dict[str, Any]], name: str, count: int, model: str) -> None:
    """Ray would let a job that no node can run wait for ever. Raises: Refused."""
    node = nodes.get(name)
    if node is None:
        raise Refused(f"unknown node {name}")
    if node["state"] != "ready":
        raise Refused(f"node {name} is {node['state']}: {node['reason']}")
    if model and model != node["model"]:
        raise Refused(f"node {name} has GPUs of model {node['model'] or 'unknown'}, not {model}")
    if count > node["gpus"]:
        raise Refused(f"node {name} has {node['gpus']} GPUs, and the job needs {count}")


def _supervisor(ray: Any) -> Any:
    """The actor's class, which is sent by value: the nodes have no such module."""
    specification = importlib.util.spec_from_file_location("offpath_ray_supervisor", _HERE / "ray_supervisor.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[module.__name__] = module
    specification.loader.exec_module(module)
    ray.cloudpickle.register_pickle_by_value(module)
    return module.Supervisor


class Answers:
    """stdout, which Ray's own messages must not reach."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._lock = Lock()

    def value(self, number: int, value: object) -> None:
        """The answer to a call."""
        self._write({"id": number, "value": value})

    def fault(self, number: int, kind: str, text: str) -> None:
        """The call failed."""
        self._write({"id": number, "fault": kind, "text": text[:2000]})

    def _write(self, answer: dict[str, Any]) -> None:
        with self._lock:
            self._out.write(json.dumps(answer) + "\n")
            self._out.flush()


def connect(address: str, folder: str, answers: Answers) -> Cluster | None:
    """None: it cannot; the answer 0 has the reason."""
    try:
        import ray
    except ImportError as fault:
        answers.fault(0, "missing", f"{sys.executable} cannot import ray: {fault}")
        return None
    sys.argv[:] = ["offpath-ray"]  # Ray would put this file's folder into the workers' sys.path
    try:
        ray.init(
            address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False, include_dashboard=False
        )
        cluster = Cluster(ray, folder)
    except Exception as fault:  # Ray does not document what init raises; the answer has it, whatever it is
        traceback.print_exc()
        answers.fault(0, "unavailable", f"Ray at {address}: {type(fault).__name__}: {fault}")
        return None
    answers.value(0, ray.__version__)
    return cluster


def main() -> None:
    """See the module's text."""
    answers = Answers()
    cluster = connect(sys.argv[1], sys.argv[2], answers)
    if cluster is None:
        return
    calls: dict[str, Callable[[Any], object]] = {
        "inventory": cluster.inventory, "jobs": cluster.jobs, "start": cluster.start, "cancel": cluster.cancel,
        "forget": cluster.forget,
    }  # fmt: skip

    def carry_out(call: dict[str, Any]) -> None:
        try:
            answers.value(call["id"], calls[call["call"]](call["argument"]))
        except Refused as fault:
            answers.fault(call["id"], "refused", str(fault))
        except (Unavailable, *cluster.faults) as fault:
            cause = getattr(fault, "cause", None) or fault  # of an error in a supervisor, without its traceback
            answers.fault(call["id"], "unavailable", f"{type(cause).__name__}: {cause}")
        except Exception as fault:  # a bug here, or a Ray that answers in a form unknown here: the caller must learn it
            traceback.print_exc()
            answers.fault(call["id"], "broken", f"{type(fault).__name__}: {fault}")

    with ThreadPoolExecutor(_THREADS) as threads:
        for line in sys.stdin.buffer:
            threads.submit(carry_out, json.loads(line))
        os._exit(0)  # the controller has closed or died: nobody waits for the calls under way


if __name__ == "__main__":
    main()
