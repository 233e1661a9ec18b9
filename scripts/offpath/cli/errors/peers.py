"""What peers tell each other: refused and closed sessions, and messages that break the protocol."""

from __future__ import annotations

from typing import Final

from offpath.cli.errors.registry import entries

FAMILIES: Final = {
    "session": "Why a session was refused or closed (`NegotiationRefused.code`, `closing`, the daemon's log).",
    "HeaderError": "A request's or an answer's header breaks a rule; three within ten seconds end the session.",
    "DoorbellError": "An immediate that no honest requester can ring; one ends the session.",
    "ControlError": "A control message that is none.",
    "AdvisorError": "What a policy plug-in did instead of an answer; the built-in policy decides from there on.",
    "FrameError": "The framing of control messages on a stream.",
    "InaFrameError": "A frame between ranks and switches; the tree is then lost for the epoch; the job goes on plain.",
    "HostMessageError": "A message of a helper or worker; it is then treated as lost.",
    "ProtocolError": "A helper or worker that speaks out of turn; it is then treated as lost.",
}
_LIBRARY: Final = "a fault of the client: compare it with docs/protocol.md"
_FABRIC: Final = "are ranks and switches of the same release? compare the other end with docs/protocol.md §9"
_HELPER: Final = "a fault of the helper: are daemon and helper of the same release?"
ENTRIES: Final = (
    *entries(
        "session",
        (
            "denied",
            "the token, the certificate or the uid belongs to no tenant; which of them is not told",
            "compare tenant, token file and the tenant's `uids` with the daemon's configuration",
        ),
        ("sessions", "the tenant has `max_sessions` sessions open", "close some, or raise `max_sessions`"),
        (
            "memory",
            "the session's slots exceed the tenant's `max_bytes`, or memory is short",
            "ask for fewer or smaller slots",
        ),
        ("payload_bytes", "it asks for more per request than `leasing.landing_bytes`", "ask for less, or raise it"),
        ("result_bytes", "it asks for more per result than `leasing.result_bytes`", "ask for less, or raise it"),
        ("draining", "the daemon takes in nothing new", "try again after `retry_after_ms`"),
        (
            "fabric",
            "the requester's queue pair cannot be connected: its end makes no sense, or its port is not reached",
            "`offpath doctor` on both sides; is the route there, and the link up?",
        ),
        (
            "fabric_down",
            "the daemon's RDMA port is down, or has only just come back",
            "nothing: the library comes back; `offpath doctor` where the daemon runs",
        ),
        ("ticket", "not this negotiation's ticket, redeemed before, late, or for a queue pair in use", _LIBRARY),
        (
            "resume_too_soon",
            "another attempt to come back within 100 ms, where each costs a queue pair",
            "nothing: the library waits",
        ),
        (
            "sessions_too_soon",
            "the tenant connects more than ten times a second, beyond as many sessions as it may hold, and each costs a"
            " queue pair",
            "nothing: the library waits; keep sessions open instead of opening one for each request",
        ),
        (
            "ticket_expired",
            "the ticket was not redeemed within five seconds",
            "connect again; does the client get CPU?",
        ),
        (
            "tenant_removed",
            "the tenant was taken out of the configuration",
            "use another tenant, or put it in again and connect anew",
        ),
        ("daemon_restarts", "the daemon ends and will be back with its sessions", "nothing: the library comes back"),
        (
            "resume_unknown",
            "no such session waits: `durability.resume_ttl_s` is over, it had ended, or its memory was not kept",
            "connect again; what was unanswered has an unknown outcome",
        ),
        ("daemon_ends", "the daemon was ended", "connect again when it is back"),
        ("peer_gone", "the requester went away", "nothing"),
        ("refused", "the host channel let this helper or worker not in", "one helper per daemon; see its `host_uids`"),
    ),
    *entries(
        "HeaderError",
        ("short", "fewer than 128 bytes were copied", _LIBRARY),
        ("magic", "it does not begin with the right four bytes", _LIBRARY),
        ("version", "another version of the protocol", "use client and daemon of one release"),
        ("too_many_tensors", "more than eight arrays", "send at most eight arrays per request"),
        ("crc", "the checksum does not match: torn or spoilt", "do not write into a slot that is rung"),
        ("flags", "an unknown flag", _LIBRARY),
        ("reserved", "a reserved byte is set", _LIBRARY),
        ("payload_bytes", "longer than the slot", _LIBRARY),
        ("result_bytes", "longer than the answer's room", "a fault of the daemon: open a new session"),
        ("request_id", "0, which is no id", _LIBRARY),
        ("status", "an unknown status or reason", "use client and daemon of one release"),
        ("slot", "an answer for a slot that waits for none", "a fault of the daemon: open a new session"),
        ("descriptor_length", "the arrays' descriptors are not whole", _LIBRARY),
        ("dtype", "an unknown dtype", "send one of the dtypes of docs/protocol.md"),
        ("dims", "more than six dimensions, or one too many is set", "reshape the array"),
        ("tensor_bytes", "an array's shape and its length disagree", _LIBRARY),
        ("tensor_bounds", "an array ends behind the payload", _LIBRARY),
        ("tensor_alignment", "an array's offset is no multiple of its element", _LIBRARY),
        ("too_many_dims", "an array has more than six dimensions", "reshape it"),
    ),
    *entries(
        "DoorbellError",
        ("immediate_length", "not four bytes", _LIBRARY),
        ("immediate_kind", "a kind without meaning", _LIBRARY),
        ("slot", "a slot the session does not have", _LIBRARY),
        ("slot_in_use", "a submit into a slot whose request is not answered", _LIBRARY),
        ("answers_unread", "it submits and never takes a doorbell", "read the doorbells: `Requester.poll`"),
    ),
    *entries(
        "ControlError",
        ("json", "not JSON", _LIBRARY),
        ("version", "another version of the protocol", "use programs of one release"),
        ("model", "fits no model; the detail lists up to eight faults", _LIBRARY),
        ("hello", "something else came before the hello", _LIBRARY),
        ("out_of_turn", "a message that has no place after the welcome", _LIBRARY),
    ),
    *entries(
        "AdvisorError",
        ("overrun", "no answer within `leasing.plugin_ms`", "make it faster, or give it more time"),
        ("raised", "the plug-in raised; the text says what", "mend it"),
        ("nonsense", "an answer that is none, or that tenants, lanes or geometry forbid", "mend it"),
        ("gone", "its process ended", "see what it printed in the daemon's log"),
    ),
    *entries(
        "FrameError",
        ("frame_length", "a frame that is empty or longer than 64 KiB", _LIBRARY),
    ),
    *entries(
        "InaFrameError",
        ("frame_length", "shorter than its head, or longer than a chunk needs", _FABRIC),
        ("version", "another version, or a reserved bit of the head", _FABRIC),
        ("kind", "of no kind", _FABRIC),
        ("rank", "a rank beyond 65 535, or beyond the job's", _FABRIC),
        ("index", "an index of 2⁶³ or more", _FABRIC),
        ("reserved", "a reserved byte is set, or a rank or an index named where none belongs", _FABRIC),
        ("body_length", "a body of the wrong length for its kind", _FABRIC),
        ("name", "a job or token that is not 1 to 255 printable characters", _FABRIC),
        ("integer", "an incarnation or stamp of 2⁶³ or more", _FABRIC),
        ("dtype", "an unknown dtype", _FABRIC),
        ("operation_bytes", "nothing, more than 2⁴⁰ bytes, or no whole number of elements", _FABRIC),
        ("offset", "a chunk that begins at no multiple of 64 KiB", _FABRIC),
        ("reason", "an unknown reason", _FABRIC),
        ("out_of_turn", "a frame that has no place where it came", _FABRIC),
    ),
    *entries(
        "HostMessageError",
        ("too_long", "over 4080 bytes, or more than four descriptors", _HELPER),
        ("empty", "no bytes at all", _HELPER),
        ("short", "shorter than its struct", _HELPER),
        ("frame", "over ZeroMQ or Comch: no frame of a session, or one that has no place there", _HELPER),
        ("session", "over ZeroMQ or Comch: a frame of another session", _HELPER),
        ("credit", "over ZeroMQ or Comch: it says that it took more than was sent", _HELPER),
        ("flood", "over ZeroMQ or Comch: it sends on although nothing was taken", _HELPER),
        (
            "descriptors",
            "over ZeroMQ or Comch: descriptors, which they do not carry",
            "use a copy engine that needs none",
        ),
        (
            "key",
            "over ZeroMQ: its key is not listed any more",
            "put it, or its new one, into `zmq.allowed`",
        ),
        ("launch", "no launch, or a reserved byte is set", _HELPER),
        ("result", "no result, or an unknown status", _HELPER),
        ("length", "its length and its number of arrays disagree", _HELPER),
        ("inline_length", "its length and its inline part disagree", _HELPER),
        ("foreign_job", "a result for a job that the lane does not hold", _HELPER),
        ("second_result", "a second result for one job", _HELPER),
        ("times", "a kernel that finished before it started", _HELPER),
        ("result_bytes", "a result longer than the lane's result half", _HELPER),
    ),
    *entries(
        "ProtocolError",
        ("lane_ready", "a worker said something else before its lane was ready", _HELPER),
        ("lane_size", "a lane is smaller than was ordered", _HELPER),
        ("out_of_turn", "a worker sent a control message that has no place here", _HELPER),
        ("kernels", "helpers have named more kernels than a daemon remembers", "fewer names, or restart the daemon"),
        ("gpu_offer", "a GPU that cannot be so, or one offered twice", _HELPER),
    ),
)
