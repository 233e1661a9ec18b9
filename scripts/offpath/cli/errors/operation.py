"""Codes for operators and programmers: the admin socket, exit codes, and the exceptions of the packages."""

from __future__ import annotations

from typing import Final

from offpath.cli.errors.registry import entries
from offpath.cli.exits import EX_CANTCREAT, EX_CONFIG, EX_NOPERM, EX_UNAVAILABLE

FAMILIES: Final = {
    "admin": "What the admin socket answers to a question it cannot answer (`fault`).",
    "exit": "Exit codes of `offpath`.",
    "exception": "Exceptions that the packages raise on purpose; their text says which case it is.",
}
_BUG: Final = "a fault of ours: report it with the log"
ENTRIES: Final = (
    *entries(
        "admin",
        (
            "unknown_job",
            "the job is neither held nor among the last 4096 ended ones",
            "compare the number; SESSION/REQUEST must be of this daemon's life",
        ),
        ("job_exists", "a training job of this name waits or runs", "cancel it, or choose another name"),
        ("jobs", "the controller knows 65 536 training jobs", "cancel some"),
        ("hosts", "neither a number of hosts nor names, both, or a name twice", "say one of the two"),
        ("not_quarantined", "the host to be released is not quarantined", "`offpath ina hosts` lists those that are"),
        ("no_room", "not enough hosts have room for the job's ranks", "wait, ask for less, or raise `ranks_per_host`"),
        ("unknown_host", "no host of the controller's topology is called so", "compare the name with the topology"),
        ("unknown_mode", "no way to share a root is called so", "the detail lists them"),
        ("unknown_state", "no state of a job has this name", "the detail lists them"),
        ("no_id", "the question names no job", "name a job's number, or session and request id"),
        ("unanswerable", "the daemon does not know this question", "use command line and daemon of one release"),
        ("too_long", "the answer would not fit a frame", "ask for a smaller page"),
        ("denied", "this uid is not an operator", "run as the daemon's user, or add the uid to `operation.admin_uids`"),
    ),
    *entries(
        "exit",
        ("0", "done", "nothing"),
        ("1", "it did not succeed", "the line on standard error says why"),
        ("2", "the command line is wrong", "`--help` lists what there is"),
        (
            str(EX_UNAVAILABLE),
            "no daemon answers",
            "is it running? is `--runtime-dir` (or `RUNTIME_DIRECTORY`) the daemon's?",
        ),
        (
            str(EX_CANTCREAT),
            "a socket, port or file that the daemon needs cannot be created or bound",
            "is another daemon running there (`offpath doctor`)? is the directory writable, and not full?",
        ),
        (str(EX_NOPERM), "this user, or this token, may not do that", "see `denied`"),
        (str(EX_CONFIG), "the configuration cannot be used", "every fault is listed with its key"),
        ("130", "interrupted", "nothing"),
    ),
    *entries(
        "exception",
        ("ProtocolError", "a peer sent bytes that are refused; see its code", "the peer must change"),
        ("FrameError", "a control frame is too large, empty or cut short", "see its code"),
        ("ControlError", "a control message fits no model", "see its code"),
        ("HeaderError", "a header breaks a rule of docs/protocol/requests.md", "see its code"),
        ("HostMessageError", "a host-channel message breaks a rule", "see its code"),
        ("DoorbellError", "an immediate that means nothing", "see its code"),
        ("InaFrameError", "a frame between ranks and switches breaks a rule", "see its code"),
        ("RequestRefused", "a well-formed wish that is not granted", "the asker must change it"),
        ("NegotiationRefused", "the daemon refused the session; see its code", "see the session's codes"),
        ("TicketRefused", "the ticket is unknown, used or late", "connect again"),
        ("PlacementTaken", "no legal start for the profile, or slices in use", _BUG),
        ("PeerGone", "the other process ended or closed", "connect again; see whether the daemon runs"),
        (
            "KeyNotListed",
            "the daemon is there and does not let our key in",
            "put the host's .pub file into the daemon's `zmq.allowed` and reload it; compare `--server-key`",
        ),
        ("HostChannelError", "the host channel's carrier cannot be used as it is set up", "its text says why"),
        ("ZmqMissing", "pyzmq is not installed", 'pip install "offpath[daemon]", or pyzmq alone'),
        (
            "KeyFileRefused",
            "a file of CURVE keys is unreadable, open to others, or holds no key",
            "`chmod 600` a secret, `chmod go-w` a public key or list; `offpath keys NAME` makes a pair",
        ),
        (
            "NobodyAllowed",
            "`zmq.allowed` lists no key, so the daemon does not start",
            "put the host's .pub file there (docs/hosts.md)",
        ),
        (
            "ComchUnusable",
            "the host channel `comch` needs DOCA, a device that serves (DPU) or connects (host), the representor and a"
            " free name; its text says what is missing",
            "`offpath doctor` on that side; `doca.representor`, `doca.comch_name` (docs/doca.md)",
        ),
        ("FabricAddressError", "the address of a switch is none", "write unix://PATH or tcp://HOST:PORT"),
        (
            "RankFileError",
            "a page between a training rank and its host's helper cannot be made, or holds what no page holds",
            "see its code",
        ),
        (
            "SwitchRefused",
            "a switch does not do what the controller told it; its text says why",
            "an old term: another controller leads; else fence the job and grant anew",
        ),
        (
            "TreeUnusable",
            "a tree does not join a job's hosts, or has a switch that does not aggregate",
            "compare the topology with the controller's `[[switch]]` tables; else the plug-in's fault",
        ),
        (
            "PolicyFault",
            "a plug-in of the controller answered what cannot be used; the built-in decides from there on",
            "the log names the plug-in; its author must change it",
        ),
        ("JobRefused", "the controller does not take a job in, or does not know it", "its code says why"),
        ("TakenOver", "another controller has taken over", "end it; one controller is enough"),
        ("RegionError", "memory that is not what it must be", "its text says which; else " + _BUG),
        (
            "HandoverError",
            "what a service manager handed down (descriptors, variables) makes no sense",
            "compare the unit with systemd/; outside of one, unset `LISTEN_*` and `WATCHDOG_*`",
        ),
        (
            "DaemonNotTrusted",
            "the daemon's directory, socket or process belongs to an unexpected user; nothing was sent to it",
            "is it your daemon? If so set OFFPATH_DAEMON_UID to the user that runs it; else find out who listens there",
        ),
        (
            "OptionRefused",
            "an argument, an environment variable or a file that was named cannot be used; its text says which",
            "give another",
        ),
        (
            "TokenRefused",
            "a token file cannot be read, is open to others, or holds no token",
            "its text says which; `openssl rand -hex 24 > FILE; chmod 600 FILE` makes one",
        ),
        (
            "PlaceUnusable",
            "a socket, port or file that the daemon needs cannot be created or bound; its text says which and why",
            f"see exit code {EX_CANTCREAT}",
        ),
        (
            "TraceError",
            "a trace file cannot be read; its text names file and line",
            "mend the row, or give another file",
        ),
        ("SweepError", "the file of finished windows cannot be written", "its text says why; give another `--out`"),
        ("WhatIfError", "the question cannot be asked of this journal or trace", "its text says why"),
        ("NothingRecorded", "no job of a journal ran to its end, or no helper was there", "give another journal"),
        (
            "NetworkError",
            "a topology, a list of jobs or of hosts cannot be used; its text names file and line",
            "mend the line, or give another file",
        ),
        (
            "PluginError",
            "a policy plug-in cannot be started; its text says why",
            "install the package that has the entry point, mend it, or name another policy",
        ),
        ("SolverMissing", "OR-Tools is not installed", 'pip install "offpath[sim]"'),
        ("TooManyFillings", "too many small jobs at once to prove an optimum", "ask for an instant with fewer jobs"),
        (
            "SelfCheckFailed",
            "a part of the daemon does not do what it is for",
            "see the log; its service manager restarts it",
        ),
        (
            "Exhausted",
            "descriptors or memory ran out, so the daemon could not check itself; it still serves",
            "raise LimitNOFILE, or lower max_sessions; the log names what ran out",
        ),
        ("JournalError", "the journal cannot be used", "its text says why"),
        (
            "JournalCorrupt",
            "a record in the middle of the journal is bad, although later ones are good",
            "keep a copy of it; to start without what it holds, move it out of the runtime directory",
        ),
        (
            "ReplayDiverged",
            "the book decides something else than the journal says it did",
            f"keep a copy of the journal: {_BUG}; move it away to start without what it holds",
        ),
        ("JournalForeign", "a journal of another boot or build: it cannot be resumed", "nothing"),
        ("DeviceError", "the GPU or the copy engine failed", "see the driver's log on that machine"),
        ("DeviceGone", "the device left", "see the driver's log on that machine; restart the helper"),
        ("VerbsError", "a call of the verbs library failed; its text says which", "`offpath doctor`, `ibv_devinfo -v`"),
        (
            "VerbsMissing",
            "pyverbs cannot be imported",
            "install the distribution's (python3-pyverbs) for the Python that runs offpath (docs/rdma.md)",
        ),
        (
            "NoRdmaDevice",
            "no RDMA device fits what was asked for, or several do",
            "`rdma link` lists them; name a device or its network interface",
        ),
        ("PortDown", "the RDMA port is not ACTIVE", "`ip link set NETDEV up`; then its cable and switch"),
        (
            "GidMissing",
            "the RDMA port has no GID of RoCEv2 over IPv4",
            "give its network interface an IPv4 address; see `rdma link`, and the port's RoCE mode",
        ),
        (
            "WorkFailed",
            "a work request ended in an error, and its queue pair takes no more",
            "its text says what to check; connect again",
        ),
        (
            "DocaError",
            "a call of DOCA failed; its text says which, and why in DOCA's words",
            "see its text; `offpath doctor`",
        ),
        (
            "DocaMissing",
            "DOCA's libraries cannot be loaded",
            "install DOCA's runtime, or name the folder of its libraries in `OFFPATH_DOCA_PATH` (docs/doca.md)",
        ),
        (
            "DocaTooOld",
            "a function is absent from the DOCA that is installed",
            "install the release that its text names",
        ),
        (
            "NoDocaDevice",
            "no DOCA device fits what was asked for, or several do",
            "`doca_caps --list-devs` lists them; name one; a BlueField must be in DPU mode",
        ),
        ("ResourceClosed", "a handle was used after it was closed", _BUG),
        ("FaultSyntax", "`OFFPATH_FAULTS` names no fault point", "unset it: it is for tests"),
        ("ConfigError", "the configuration cannot be used", "every fault is listed with its key"),
        ("BadArguments", "a question to the admin socket that names nothing", "see the admin codes"),
        ("RequestFailed", "a request ended in anything but COMPLETED", "see its status and reason"),
        ("RequestTimeout", "no answer within the caller's patience; it was cancelled", "`offpath request explain`"),
        ("UnknownKernel", "no helper serves a kernel of this name", "start the helper that does"),
        (
            "TensorRejected",
            "a tensor of a kind that the INA runtime does not all-reduce; nothing was sent, the runtime goes on",
            "its text says what to change: to_dense(), contiguous(), another dtype",
        ),
        ("PayloadTooLarge", "the arrays do not fit a slot", "connect with larger `payload_bytes`, or send less"),
        ("DaemonUnreachable", "no daemon answers on its admin socket", f"see exit code {EX_UNAVAILABLE}"),
        ("NotPermitted", "the daemon does not let this user in", f"see exit code {EX_NOPERM}"),
        ("Refused", "the admin socket cannot answer", "see the admin codes"),
        ("DemoFailed", "the demo's own checks failed", "its text says which; " + _BUG),
        (
            "ClusterFailed",
            "a process of `demo ina` ended, or something did not come about in time",
            "its text says which",
        ),
        (
            "TrainMissing",
            "torch is not installed, which training needs",
            "./scripts/demo ina installs it (extra `train`)",
        ),
        ("RecordError", "an epoch, a rank's state or a permission is none", "use programs of one release"),
        ("SchedError", "a caller broke a contract of the scheduler", _BUG),
        (
            "PlainError",
            "plain values that make no record of the scheduler's: a journal's are damaged",
            "see `JournalCorrupt`",
        ),
        ("IllegalPlacement", "an instance that MIG's geometry forbids", _BUG),
        (
            "EngineError",
            "a simulation that cannot be run; its text says why",
            "give other jobs, or install the extra `sim`",
        ),
        (
            "JobTooLarge",
            "a simulated job wants more hosts than the cluster has",
            "give a larger cluster, or other jobs",
        ),
        ("Mismatch", "ranks of a job name one aggregation differently; it is refused", "are all ranks of one program?"),
        ("PatternError", "a file is no communication pattern; its text says where", "mend it, or give another file"),
        ("HostsHeld", "a host was given to two jobs, or released twice", _BUG),
        (
            "TopologyError",
            "a text that is no topology, or one that contradicts itself; its text names the line",
            "mend the line, or give another file",
        ),
        ("AdvisorError", "a policy plug-in did not answer", "see its codes"),
        ("InvalidTransition", "an event that the book's state does not allow", _BUG),
    ),
)
