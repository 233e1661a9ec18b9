"""Codes for operators and programmers: the admin socket, exit codes, and the exceptions of the packages."""

from __future__ import annotations

from typing import Final

from offpath.cli.errors.registry import entries
from offpath.cli.exits import EX_CANTCREAT, EX_CONFIG, EX_NOPERM, EX_UNAVAILABLE

FAMILIES: Final = {
    "admin": "Refusals of the admin socket (`fault`).",
    "exit": "Exit codes of `offpath`.",
    "exception": "Exceptions that the packages raise; the text gives the case.",
}
_BUG: Final = "a bug in offpath: report it with the log"
ENTRIES: Final = (
    *entries(
        "admin",
        (
            "unknown_job",
            "the job is neither held nor among the last 4096 ended ones",
            "check the number; SESSION/REQUEST must be of the running daemon process",
        ),
        ("job_exists", "a training job of this name waits or runs", "cancel it, or choose another name"),
        ("jobs", "the controller holds 65 536 training jobs, its limit", "cancel some"),
        ("hosts", "neither a number of hosts nor names, or both, or a name twice", "give one of the two"),
        ("not_quarantined", "the host to be released is not quarantined", "`offpath ina hosts` lists those that are"),
        ("no_room", "not enough hosts have room for the job's ranks", "wait, request less, or raise `ranks_per_host`"),
        ("unknown_host", "the controller's topology has no such host", "compare the name with the topology"),
        ("unknown_mode", "unknown sharing mode of a root", "the detail lists them"),
        ("unknown_state", "unknown job state", "the detail lists them"),
        ("no_id", "the request names no job", "give a job's number, or session and request id"),
        ("unanswerable", "the daemon does not support this request", "use the same release of command line and daemon"),
        ("too_long", "the answer does not fit a frame", "request a smaller page"),
        ("denied", "this uid is not an operator", "run as the daemon's user, or add the uid to `operation.admin_uids`"),
    ),
    *entries(
        "exit",
        ("0", "done", "nothing"),
        ("1", "failure", "the line on standard error gives the reason"),
        ("2", "the command line is wrong", "see `--help`"),
        (
            str(EX_UNAVAILABLE),
            "no daemon answers",
            "check that it runs, and that `--runtime-dir` (or `RUNTIME_DIRECTORY`) is the daemon's",
        ),
        (
            str(EX_CANTCREAT),
            "a socket, port or file that the daemon needs cannot be created or bound",
            "check for another daemon there (`offpath doctor`); the directory must be writable and not full",
        ),
        (str(EX_NOPERM), "this user or token lacks the permission", "see `denied`"),
        (str(EX_CONFIG), "the configuration is invalid", "every fault is listed with its key"),
        ("130", "interrupted", "nothing"),
    ),
    *entries(
        "exception",
        ("ProtocolError", "a peer broke the protocol; see its code", "fix the peer"),
        ("FrameError", "a control frame is too large, empty or truncated", "see its code"),
        ("ControlError", "a control message matches no model", "see its code"),
        ("HeaderError", "a header breaks a rule of docs/protocol/requests.md", "see its code"),
        ("HostMessageError", "a host-channel message breaks a rule", "see its code"),
        ("DoorbellError", "an undefined immediate value", "see its code"),
        ("InaFrameError", "a frame between ranks and switches breaks a rule", "see its code"),
        ("RequestRefused", "a valid request was refused", "change the request"),
        ("NegotiationRefused", "the daemon refused the session; see its code", "see the session's codes"),
        ("TicketRefused", "the ticket is unknown, used or expired", "connect again"),
        ("PlacementTaken", "no legal start for the profile, or slices in use", _BUG),
        ("PeerGone", "the other process ended or closed the connection", "connect again; check that the daemon runs"),
        (
            "KeyNotListed",
            "the daemon refuses this host's key",
            "put the host's .pub file into the daemon's `zmq.allowed` and reload it; compare `--server-key`",
        ),
        ("NotBuilt", "a benchmark's C program cannot be built", "install a C compiler; its text gives the reason"),
        ("NotPossible", "a check of `offpath gpu check` lacks what it needs", "its text names what is missing"),
        ("HostChannelError", "the host channel's carrier is misconfigured", "its text gives the reason"),
        ("ZmqMissing", "pyzmq is not installed", 'pip install "offpath[daemon]", or pyzmq alone'),
        (
            "KeyFileRefused",
            "a file of CURVE keys is unreadable, accessible to others, or contains no key",
            "`chmod 600` a secret, `chmod go-w` a public key or list; `offpath keys NAME` creates a pair",
        ),
        (
            "NobodyAllowed",
            "`zmq.allowed` lists no key, so the daemon does not start",
            "put the host's .pub file there (docs/hosts.md)",
        ),
        (
            "ComchUnusable",
            "the host channel `comch` needs DOCA, a device that serves (DPU) or connects (host), the representor and a"
            " free name; its text names what is missing",
            "`offpath doctor` on that side; `doca.representor`, `doca.comch_name` (docs/doca.md)",
        ),
        ("FabricAddressError", "the address of a switch is invalid", "use unix://PATH or tcp://HOST:PORT"),
        (
            "RankFileError",
            "a rank's state file, shared with its host's helper, cannot be created or is invalid",
            "see its code",
        ),
        (
            "SwitchRefused",
            "a switch refused a command of the controller; its text gives the reason",
            "for an old term: another controller leads; else fence the job and grant again",
        ),
        (
            "TreeUnusable",
            "a tree does not join a job's hosts, or has a switch that does not aggregate",
            "compare the topology with the controller's `[[switch]]` tables; else fix the plug-in",
        ),
        (
            "PolicyFault",
            "a plug-in of the controller gave an invalid answer; the built-in policy decides from then on",
            "fix the plug-in that the log names",
        ),
        ("JobRefused", "the controller refused a job, or does not have it", "see its code"),
        ("TakenOver", "another controller has taken over", "end this one; run only one controller"),
        ("RegionError", "a memory region is invalid", "its text names it; else " + _BUG),
        (
            "HandoverError",
            "descriptors or variables from the service manager are invalid",
            "compare the unit with systemd/; outside of one, unset `LISTEN_*` and `WATCHDOG_*`",
        ),
        (
            "DaemonNotTrusted",
            "the daemon's directory, socket or process belongs to an unexpected user; nothing was sent to it",
            "if it is your daemon, set OFFPATH_DAEMON_UID to its user; else find out who listens there",
        ),
        (
            "OptionRefused",
            "an argument, an environment variable or a named file cannot be used; its text names it",
            "use another one",
        ),
        (
            "TokenRefused",
            "a token file cannot be read, is accessible to others, or contains no token",
            "see its text; `openssl rand -hex 24 > FILE; chmod 600 FILE` creates one",
        ),
        (
            "PlaceUnusable",
            "a socket, port or file that the daemon needs cannot be created or bound; its text has the reason",
            f"see exit code {EX_CANTCREAT}",
        ),
        (
            "TraceError",
            "a trace file cannot be read; its text names file and line",
            "fix the row, or use another file",
        ),
        ("SweepError", "the file of finished windows cannot be written", "see its text; use another `--out`"),
        ("WhatIfError", "this journal or trace does not allow the comparison", "see its text"),
        ("NothingRecorded", "no job of the journal ran to its end, or no helper had joined", "use another journal"),
        (
            "NetworkError",
            "a topology, a list of jobs or of hosts cannot be used; its text names file and line",
            "fix the line, or use another file",
        ),
        (
            "PluginError",
            "a policy plug-in cannot be started; its text gives the reason",
            "install the package that has the entry point, fix it, or name another policy",
        ),
        ("SolverMissing", "OR-Tools is not installed", 'pip install "offpath[sim]"'),
        ("TooManyFillings", "too many small jobs at once to prove an optimum", "choose an instant with fewer jobs"),
        (
            "SelfCheckFailed",
            "a part of the daemon does not work",
            "see the log; its service manager restarts it",
        ),
        (
            "Exhausted",
            "descriptors or memory ran out, so the daemon could not check itself; it still serves",
            "raise LimitNOFILE, or lower max_sessions; the log names what ran out",
        ),
        ("JournalError", "the journal cannot be used", "see its text"),
        (
            "JournalCorrupt",
            "a record in the middle of the journal is bad, although later ones are good",
            "keep a copy; to start without its content, move it out of the runtime directory",
        ),
        (
            "ReplayDiverged",
            "on replay, the book decides differently from the journal's record",
            f"keep a copy of the journal: {_BUG}; move it away to start without its content",
        ),
        ("JournalForeign", "a journal of another boot or build: it cannot be resumed", "nothing"),
        ("DeviceError", "the GPU or the copy engine failed", "see the driver's log on that machine"),
        ("DeviceGone", "the device is gone", "see the driver's log on that machine; restart the helper"),
        (
            "CudaLost",
            "a GPU error (a kernel's fault, memory, the bus) ended all work of a process; its worker is replaced",
            "the text has CUDA's result; the kernel's log has the Xid event",
        ),
        ("CudaError", "a call of the CUDA driver failed; its text has the call and the result", "`nvidia-smi`"),
        (
            "CudaMissing",
            "cuda-bindings or the driver's library cannot be loaded, or the driver lacks a function",
            "pip install 'offpath[gpu]'; install the NVIDIA driver (535 or later)",
        ),
        (
            "NoGpu",
            "a helper finds no GPU that it can use, and has no model to emulate",
            "`offpath doctor --host`; to emulate a GPU, start the helper with `--emulate A100-40GB`",
        ),
        (
            "HelperUnreachable",
            "no helper of this name listens for reloads where the command looked",
            "`--name`, `--runtime-dir`; run the command as the helper's user or root; SIGHUP to the helper reloads too",
        ),
        (
            "ReloadRefused",
            "the helper did not take over its file's new version, and serves what it served",
            "the text has the reason, the helper's log the traceback; correct the file and reload again",
        ),
        (
            "MpsError",
            "a lease's MPS control daemon did not start, or did not accept a setting",
            "its text has the reason; docs/gpu.md, MPS; `--mps off` runs leases without it",
        ),
        (
            "MpsMissing",
            "MPS is required, and this machine has no nvidia-cuda-mps-control",
            "install the driver's compute utilities, or start the helper with `--mps auto` or `--mps off`",
        ),
        (
            "MpsNotInForce",
            "a worker runs without MPS, or with another share of the GPU than its own; all lanes of its lease end",
            "see control.log in the lease's MPS directory; docs/gpu.md, MPS",
        ),
        ("VerbsError", "a call of the verbs library failed; its text names it", "`offpath doctor`, `ibv_devinfo -v`"),
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
        ("PortDown", "the RDMA port is not ACTIVE", "`ip link set NETDEV up`; then check its cable and switch"),
        (
            "GidMissing",
            "the RDMA port has no GID of RoCEv2 over IPv4",
            "give its network interface an IPv4 address; see `rdma link`, and the port's RoCE mode",
        ),
        (
            "WorkFailed",
            "a work request failed, and its queue pair is unusable",
            "check what its text names; connect again",
        ),
        (
            "DocaError",
            "a call of DOCA failed; its text has the call and DOCA's reason",
            "see its text; `offpath doctor`",
        ),
        (
            "DocaMissing",
            "DOCA's libraries cannot be loaded",
            "install DOCA's runtime, or name the folder of its libraries in `OFFPATH_DOCA_PATH` (docs/doca.md)",
        ),
        (
            "DocaTooOld",
            "the installed DOCA lacks a function",
            "install the release that its text names",
        ),
        (
            "NoDocaDevice",
            "no DOCA device, or more than one, matches the options",
            "`doca_caps --list-devs` lists them; name one; a BlueField must be in DPU mode",
        ),
        ("ResourceClosed", "a handle was used after it was closed", _BUG),
        ("FaultSyntax", "`OFFPATH_FAULTS` contains an unknown fault point", "unset it: it is for tests"),
        ("ConfigError", "the configuration is invalid", "every fault is listed with its key"),
        ("BadArguments", "an admin request with invalid arguments", "see the admin codes"),
        ("RequestFailed", "a request ended otherwise than COMPLETED", "see its status and reason"),
        (
            "RequestTimeout",
            "no answer within the caller's timeout; the request was cancelled",
            "`offpath request explain`",
        ),
        ("UnknownKernel", "no helper serves a kernel of this name", "start the helper that does"),
        (
            "TensorRejected",
            "the INA runtime does not support the tensor; nothing was sent, the runtime stays usable",
            "as its text requests: to_dense(), contiguous(), another dtype",
        ),
        ("PayloadTooLarge", "the arrays do not fit a slot", "connect with larger `payload_bytes`, or send less"),
        ("DaemonUnreachable", "no daemon answers on its admin socket", f"see exit code {EX_UNAVAILABLE}"),
        ("NotPermitted", "the daemon refuses this user", f"see exit code {EX_NOPERM}"),
        ("Refused", "the admin socket refused the request", "see the admin codes"),
        ("DemoFailed", "the demo's own checks failed", "its text names them; " + _BUG),
        (
            "ClusterFailed",
            "a process of `demo ina` ended, or a condition was not reached in time",
            "see its text",
        ),
        (
            "TrainMissing",
            "torch is not installed, which training needs",
            "./scripts/demo ina installs it (extra `train`)",
        ),
        ("RecordError", "an epoch, a rank's state or a permission is invalid", "use the same release of all programs"),
        ("SchedError", "a caller broke a contract of the scheduler", _BUG),
        (
            "PlainError",
            "plain values that are not a scheduler's record: the journal is damaged",
            "see `JournalCorrupt`",
        ),
        ("IllegalPlacement", "an instance that MIG's geometry forbids", _BUG),
        (
            "EngineError",
            "a simulation cannot be run; its text gives the reason",
            "use other jobs, or install the extra `sim`",
        ),
        (
            "JobTooLarge",
            "a simulated job needs more hosts than the cluster has",
            "use a larger cluster, or other jobs",
        ),
        (
            "Mismatch",
            "ranks of a job describe one aggregation differently; it is refused",
            "run the same program on all ranks",
        ),
        (
            "PatternError",
            "a file is not a communication pattern; its text names the position",
            "fix it, or use another file",
        ),
        ("HostsHeld", "a host was given to two jobs, or released twice", _BUG),
        (
            "TopologyError",
            "an invalid or contradictory topology; its text names the line",
            "fix the line, or use another file",
        ),
        (
            "JobEngineError",
            "an engine of jobs (Slurm, Ray, local) failed; see its subclasses",
            "its text has the engine's reason",
        ),
        (
            "EngineRefused",
            "the engine does not take a job; the text is the engine's own reason",
            "change the job's request, or take the reason to the engine's operator",
        ),
        (
            "EngineJobUnknown",
            "the engine has no job of this identity",
            "nothing, if the job was forgotten; else start it again: a command runs at most once per identity",
        ),
        (
            "EngineUnavailable",
            "the engine did not answer in time, or another controller uses it",
            "start the engine's daemons (slurmctld, Ray's head), or end the other controller; calls may be repeated",
        ),
        (
            "EngineAnswerInvalid",
            "an engine's answer, or a record of its state folder, is too long or not of the known form",
            "compare the engine's release with docs/engines.md; move a damaged record away",
        ),
        (
            "EngineMissing",
            "an engine's programs or package are not where the configuration says",
            "install Slurm's client commands, or `pip install 'offpath[ray]'`; docs/engines.md",
        ),
        ("AdvisorError", "a policy plug-in failed to answer", "see its codes"),
        ("InvalidTransition", "an event that the book's state does not allow", _BUG),
    ),
)
