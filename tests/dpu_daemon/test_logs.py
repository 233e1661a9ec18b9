"""The log: JSON lines with fields, one line per message whatever a peer wrote, no secret, no flood."""

from __future__ import annotations

import json
import logging
import os
import signal
from typing import Any

import numpy as np
import pytest

from offpath.bindings.errors import NegotiationRefused
from offpath.dpu_daemon.operation import logs
from offpath.host_helper import Requester, RequestFailed

from ..support.cluster import TIMEOUT, Cluster, pids_of
from ..support.clusters import Make
from ..support.processes import until
from ..support.sources import log_calls


def record(template: str, *arguments: Any, level: int = logging.WARNING, code: str = "") -> logging.LogRecord:
    made = logging.LogRecord("offpath.test", level, "f.py", 1, template, arguments, None)
    if code:
        made.code = code
    return made


def test_a_daemon_logs_json_lines_with_ids_as_fields_and_no_secret(make_cluster: Make) -> None:
    cluster = make_cluster({"ada": {}}, operation={"log": "json"})
    helper = cluster.start_helper()
    with cluster.connect("ada") as ada:
        ada.submit("echo", [np.array([1.0])], timeout=TIMEOUT)
        os.kill(pids_of(helper)[0], signal.SIGKILL)
        until(lambda: "worker_lost" in cluster.daemon.errors)
        with pytest.raises(NegotiationRefused):
            Requester(cluster.address, tenant="ada", token_file=wrong_token(cluster))
        with pytest.raises(RequestFailed):
            ada.submit("fail", [np.frombuffer(b"a payload nobody may read", np.uint8)], timeout=TIMEOUT)
    lines = [json.loads(line) for line in cluster.daemon.errors.splitlines()]
    by_code = {line["code"]: line for line in lines if "code" in line}
    assert by_code["lease_opens"]["tenant"] == "ada"
    assert {line["lease"] for line in lines if line.get("code") == "lease_opens"} >= {1}
    assert (by_code["worker_lost"]["level"], by_code["worker_lost"]["lease"]) == ("warning", 1)
    assert {"time", "level", "logger", "message"} <= set(by_code["helper_joined"])
    for secret in (cluster.token("ada"), "w" * 24, "a payload nobody may read", ada.welcome.resume_token):
        assert secret not in cluster.daemon.errors


def wrong_token(cluster: Cluster) -> str:
    path = cluster.folder / "wrong.token"
    path.write_text("w" * 24)
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize("text", ["line\nWARNING forged: yes", "carriage\rreturn", "escape\x1b[2J", "next\u2028line"])
def test_a_peers_words_never_make_a_second_line(text: str) -> None:
    for formatter in (logs.OneLine("%(levelname)s %(message)s"), logs.JsonLines()):
        made = formatter.format(record("lease %d could not be opened: %s", 7, text, code="lease_failed"))
        assert not set(made) & {"\n", "\r", "\x1b"}
        assert len(made.splitlines()) == 1 or isinstance(formatter, logs.JsonLines)
    assert json.loads(made)["lease"] == 7


@pytest.mark.parametrize("secret", ["k" * 43, "0xdeadbeef00", "A1-_" * 12])
def test_what_could_be_a_secret_or_an_address_is_left_out(secret: str) -> None:
    made = logs.JsonLines().format(record("ticket refused: %s", f"ticket {secret} is unknown"))
    assert secret not in made
    gpu = f"GPU-{'0' * 32}"
    opens = record("lease %d: %s gets %s at %d of %s", 1, "ada", "1g.5gb", 0, gpu, code="lease_opens")
    kept = logs.JsonLines().format(opens)
    assert json.loads(kept)["gpu"] == gpu


def test_a_kind_of_message_is_limited_and_the_next_one_says_how_many_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(logs.time, "monotonic", lambda: now)
    limit = logs.RateLimit()
    passed = [limit.filter(record("ticket refused: %s", n)) for n in range(100)]
    assert passed == [True] * logs.BURST + [False] * (100 - logs.BURST)
    assert limit.filter(record("lease %d closes", 1)), "other kinds are not concerned"
    assert limit.filter(record("ticket refused: %s", 1, level=logging.ERROR)), "an error is another kind"
    errors = [limit.filter(record("ticket refused: %s", n, level=logging.ERROR)) for n in range(100)]
    assert not any(errors), "one a second"
    answers = [record("configuration %d is in force", n, code="config_changed") for n in range(100)]
    assert all(limit.filter(answer) for answer in answers), "an operator waits for it"
    now = 1.0
    late = record("ticket refused: %s", "again")
    assert limit.filter(late)
    assert json.loads(logs.JsonLines().format(late))["left_out"] == 100 - logs.BURST
    text = logs.OneLine("%(message)s").format(late)
    assert text == f"ticket refused: again ({100 - logs.BURST} similar messages were dropped)"


def test_the_table_of_kinds_is_bounded() -> None:
    limit = logs.RateLimit()
    for n in range(3 * logs.KINDS_KEPT):
        limit.filter(record(f"kind {n}"))
    assert len(limit._kinds) <= logs.KINDS_KEPT


def test_every_message_of_the_daemon_has_a_code_and_names_for_its_arguments() -> None:
    found: dict[str, set[int]] = {}
    for call in log_calls("dpu_daemon", "bindings"):
        if call.arguments and call.where.startswith("dpu_daemon"):  # messages of bindings may have none
            assert call.template is not None, f"{call.where}: the template is no literal"
            assert call.code, f"{call.where}: a message with arguments carries a code"
        if call.code:
            found.setdefault(call.code, set()).add(call.arguments)
    assert {code: {len(names)} for code, names in logs.FIELDS.items()} == found
