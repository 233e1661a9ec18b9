"""Refusals of devices and of federated jobs by a collaboration controller (`sched.collab`)."""

from __future__ import annotations

from typing import Final

from offpath.cli.errors.registry import entries

FAMILIES: Final = {
    "collab": "Refusals of a collaboration controller: of devices' messages (`refused`), and of requests of jobs.",
}
_BODY: Final = "compare the message with docs/collab.md"
_RETRY: Final = "send a new message after `retry_ms`"

ENTRIES: Final = (
    *entries(
        "collab",
        ("forged", "the token is not this device's", "give the device the token of `offpath collab token DEVICE`"),
        (
            "clock",
            "the device's clock differs by more than `devices.skew_s`",
            "correct `sent_ms` by the answer's `now_ms`",
        ),
        ("replayed", "a later message of the device came before it", "send a message with a later `sent_ms`"),
        ("device_rate", "the device sends more than `devices.per_minute` messages", _RETRY),
        ("busy", "all devices together send more than `devices.per_second` messages", _RETRY),
        ("properties", "a device states too many properties, or one that is none", "see its text; docs/collab.md"),
        ("no_lease", "the device has no such lease: the result is counted already, or the lease has ended", "check in"),
        ("json", "the message is no JSON, or has a repeated key", _BODY),
        ("message", "the message has a field that is missing, unknown or out of its range", _BODY),
        ("version", "the message is of another version of the protocol", "use one release of both sides"),
        ("path", "the HTTP path is none of those for devices", "POST /v1/checkin or /v1/result"),
        ("method", "the HTTP method is not POST", "use POST"),
        ("too_long", "the message is longer than 16 KiB", "state fewer properties"),
        ("http", "the bytes are no HTTP/1.1 request; the connection is closed", "use an HTTP client"),
        ("pipelined", "too many messages at once on a connection, which is closed", "wait for answers"),
        ("timeout", "the message did not come within 10 s; the connection is closed", "send it again"),
        ("job_exists", "another job of this name is open", "close it, or choose another name"),
        ("too_many_jobs", "16 384 jobs are open", "close some"),
        ("job", "a figure of the job is out of bounds", "see its text"),
        ("no_job", "no job of this name is open", "`offpath collab jobs` lists all"),
        ("not_yours", "the job belongs to another user", "ask its user, or an operator"),
        ("user", "the user's uid has no name on the controller's machine", "add the user"),
        ("round_runs", "the job's last round has not ended", "wait for its end, or close the job"),
        ("round_over", "that round has ended", "give the next round a higher number"),
        ("demand", "a round asks for no device, or for more than a million", "ask for 1 to 1 000 000"),
        ("deadline", "the deadline has passed, or is more than a week ahead", "choose one within a week"),
        ("lease", "the state file has a lease that contradicts its jobs", "restore the file from a copy"),
    ),
    *entries(
        "admin",
        ("requirement", "a requirement has too many terms, or one that is none", "see its text; docs/collab.md"),
        (
            "too_many_requirements",
            "open jobs have 128 different requirements already",
            "use a requirement that another job has, or close jobs",
        ),
    ),
    *entries(
        "exception",
        ("CollabRefused", "a federated job or a device's result is refused", "see its code, `offpath errors collab`"),
        ("DeviceRefused", "a device's message is refused", "see its code"),
        ("HttpMissing", "`[http]` needs httptools", 'pip install "offpath[collab]"'),
        ("RequirementInvalid", "a requirement or a device's properties are out of bounds", "see its text"),
        (
            "TooManyRequirements",
            "open jobs have 128 different requirements already",
            "use a requirement that another job has, or close jobs",
        ),
    ),
)
