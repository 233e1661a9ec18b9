"""How a request can end: statuses and reasons of the wire."""

from __future__ import annotations

from typing import Final

from offpath.cli.errors.registry import entries

FAMILIES: Final = {
    "status": "How a request ended (`RequestFailed.status`, `offpath_answers_total{status=…}`).",
    "reason": "The reason of the end (`RequestFailed.reason`, `offpath_answers_total{reason=…}`); "
    "`offpath request explain ID` adds the numbers.",
}
_RETRY: Final = "submit it again after `retry_after_ms`"
_AGAIN: Final = "submit it again if the kernel may run twice; mark such requests idempotent"
ENTRIES: Final = (
    *entries(
        "status",
        ("completed", "the kernel ran and its result is available", "nothing"),
        ("failed", "it ran or was being started, and a failure occurred; see the reason", "see the reason"),
        ("cancelled", "its requester, or an operator, cancelled it", "nothing"),
        ("expired", "its budget (`budget_ms`) passed before it had a result", "give it more budget, or less work"),
        ("rejected", "it was never accepted; see the reason", "see the reason"),
        ("retry_safe", "it certainly never started", "submit it again; the library does so, at most three times"),
        ("outcome_unknown", "it may have run, or may still run: the outcome is lost", _AGAIN),
    ),
    *entries(
        "reason",
        ("none", "it completed", "nothing"),
        (
            "bad_header",
            "the header breaks a rule of docs/protocol/requests.md",
            "a bug in the client library: report it",
        ),
        ("unknown_kernel", "no helper serves a kernel of this number", "start the helper that serves it, or reconnect"),
        ("bad_demand", "the demand R is neither 1 to 100 nor whole GPUs", "request 1 to 100 percent of a GPU"),
        (
            "payload_too_large",
            "the payload exceeds `leasing.landing_bytes`",
            "send less at once, or raise `leasing.landing_bytes`",
        ),
        (
            "duplicate_id",
            "the session has used this request id before",
            "ids must increase: a bug in the client library",
        ),
        (
            "gang_unsupported",
            "it needs several GPUs, and no host has as many whole GPUs of one model",
            "request fewer GPUs, or start helpers with whole GPUs (docs/gpu.md, Gangs)",
        ),
        (
            "bad_sequence",
            "it has no `sequence_id`, and its kernel needs one; or it has one, and its kernel takes none "
            "(also if helpers have changed that while it was queued)",
            "set `sequence_id` for a kernel with `sequences=True`, and for no other (docs/sequences.md)",
        ),
        (
            "sequence_unknown",
            "it does not start a sequence, and its session has none of this id and kernel",
            "set `sequence_start` on the first request; begin anew after `limits.sequence_idle_ms` without a request",
        ),
        (
            "too_many_sequences",
            "its tenant, or all tenants together, have `max_sequences` sequences",
            f"{_RETRY}; end sequences with `sequence_end`; or raise `max_sequences`",
        ),
        (
            "tenant_queue_full",
            "its tenant has `max_jobs` requests accepted and unanswered",
            f"{_RETRY}; or raise the tenant's `max_jobs`",
        ),
        ("daemon_full", "all tenants together have `max_jobs` requests unanswered", f"{_RETRY}; or raise `max_jobs`"),
        (
            "deadline_unreachable",
            "by the last runs of its kernel and of those ahead, it would end after its budget",
            "give it more budget or priority, or the tenant more share",
        ),
        (
            "no_instance_fits",
            "no GPU of the helper has an instance for its demand and its lanes' memory",
            "request less, or lower `leasing.lanes` × (`landing_bytes` + `result_bytes`)",
        ),
        (
            "kernel_not_permitted",
            "the configuration does not permit its tenant this kernel",
            "use a permitted kernel, or add it to the tenant's `kernels`",
        ),
        (
            "no_gpu_model",
            "no GPU of the helper is of a model that its kernel accepts",
            "run the helper on such a GPU, or add the model to the kernel's `demand`",
        ),
        (
            "no_instance_memory",
            "no instance that holds its demand has the memory that its kernel needs",
            "run the helper on a larger GPU, or lower the kernel's `memory`; `offpath request explain ID` has sizes",
        ),
        (
            "tenant_share_limit",
            "its demand exceeds the tenant's `max_demand`, or the smallest instance for it `max_share`",
            "request less, or raise the tenant's limits",
        ),
        ("deadline_passed", "its budget passed while it was queued or ran", "give it more budget; see `offpath top`"),
        ("cancelled_by_requester", "its requester cancelled it", "nothing"),
        (
            "cancelled_by_operator",
            "an operator cancelled it",
            "ask the operator; `offpath request explain ID` has the uid",
        ),
        ("session_closed", "its session ended first", "keep the session open until all answers have arrived"),
        ("draining", "the daemon finishes accepted requests and accepts no new ones", _RETRY),
        (
            "journal_failed",
            "the daemon cannot write its journal, so it accepts nothing; accepted requests are finished",
            "see `journal_failed` in its log, make room in the runtime directory, restart it",
        ),
        (
            "tenant_removed",
            "its tenant was removed from the configuration while it was queued or submitted",
            "use another tenant, or add it again and reconnect",
        ),
        (
            "sequence_lost",
            "its sequence's state was lost before it could run: with its worker, by a reload, or without its start",
            "begin the sequence anew with `sequence_start`",
        ),
        (
            "kernel_gone",
            "no helper has served its kernel for `limits.kernel_gone_ms`; it did not run to its end",
            "start a helper that serves the kernel, then submit it again",
        ),
        ("kernel_raised", "the kernel raised; the answer's text has the exception", "fix the kernel or its input"),
        (
            "result_too_large",
            "the result exceeds the session's `result_bytes` or the lane's",
            "connect with a larger `result_bytes`, or raise `leasing.result_bytes`",
        ),
        (
            "payload_checksum",
            "the payload in the lane does not match its checksum",
            "do not write into a slot before its answer; otherwise the memory or the copy engine is defective",
        ),
        ("copy_failed", "the copy engine failed to copy the payload to the lane", "see the daemon's log"),
        ("worker_lost", "the worker process ended while the kernel may have run", f"see the helper's log; {_AGAIN}"),
        ("helper_lost", "the helper ended while the kernel may have run", f"see why it ended; {_AGAIN}"),
        ("daemon_restarted", "the daemon ended while the kernel may have run", _AGAIN),
        (
            "kernel_overran",
            "the kernel ran for longer than `limits.kernel_ms`; its worker was killed",
            "fix the kernel, send it less at once, or raise `limits.kernel_ms`",
        ),
        (
            "result_not_split",
            "the kernel ran on a batch, and a tensor of its result does not have one row for each row of the batch",
            "return one row for each row of the arguments, or declare the kernel without `max_batch`",
        ),
        (
            "stream_mismatch",
            "the kernel streams and the request does not, or the other way round; it did not run",
            "call `stream` for a kernel that streams, and `submit` for any other",
        ),
    ),
)
