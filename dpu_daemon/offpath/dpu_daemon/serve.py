"""Runs a daemon: sockets in the runtime directory, signals, ready line, closing statistics."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import uvloop

from offpath.bindings.cuda.copy import CudaCopyEngine
from offpath.bindings.doca.channel import ComchListener
from offpath.bindings.doca.copy import DocaCopyEngine
from offpath.bindings.doca.device import Ability, open_device
from offpath.bindings.doca.load import load
from offpath.bindings.errors import HostChannelError, PlaceUnusable
from offpath.bindings.loopback.channel import LoopbackChannelListener
from offpath.bindings.ports import CopyEngine, HostListener
from offpath.bindings.runtime import JOURNAL, LAST_GOOD, make_runtime_directory
from offpath.bindings.verbs.copy import VerbsCopyEngine
from offpath.bindings.verbs.devices import choose
from offpath.bindings.verbs.domain import Device
from offpath.bindings.zeromq.keys import read_allowed
from offpath.dpu_daemon.agent import shell as agent
from offpath.dpu_daemon.config import DaemonConfig, Sources, zmq_secret
from offpath.dpu_daemon.daemon import Daemon
from offpath.dpu_daemon.durability.boot import boot_id
from offpath.dpu_daemon.durability.inherited import LISTENING, Inherited, take_inherited
from offpath.dpu_daemon.durability.journal.log import Journal, Replayed, journal_bytes, open_journal
from offpath.dpu_daemon.durability.journal.ring import JournalCorrupt, MappedFile
from offpath.dpu_daemon.durability.notify import Notifier, close_all, watchdog_interval_s
from offpath.dpu_daemon.durability.storing import Store
from offpath.dpu_daemon.ingress.negotiation import Endpoints, Negotiator
from offpath.dpu_daemon.operation import logs, metrics
from offpath.dpu_daemon.operation.admin import AdminServer
from offpath.dpu_daemon.operation.metrics_http import MetricsServer
from offpath.dpu_daemon.operation.recovery import Recovery
from offpath.dpu_daemon.operation.reload import Reloader
from offpath.dpu_daemon.operation.selfcheck import SelfCheck, feed_watchdog
from offpath.dpu_daemon.policy.plugins import PluginError, PluginProcess, started
from offpath.sched.jobs.book import JobBook

if TYPE_CHECKING:
    from offpath.bindings.zeromq.listener import ZmqListener

logger = logging.getLogger(__name__)
ANNOUNCE_S: Final = 0.2


@contextlib.asynccontextmanager
async def running_daemon(
    config: DaemonConfig, directory: str, inherited: Inherited | None = None, notifier: Notifier | None = None
) -> AsyncIterator[tuple[Daemon, Negotiator]]:
    """Run a daemon for the duration of the block. It takes ownership of ``inherited`` and resumes the state that the
    journal in ``directory`` records of an earlier process.

    Raises: RegionError, PlaceUnusable: directory or sockets cannot be created. JournalError: the journal is unusable
    or damaged. PluginError: the policy plug-in does not start. VerbsError, DocaError: no device for the copy engine.
    HostChannelError: the host channel's keys or library are unusable.
    """
    inherited, notifier = inherited or Inherited(), notifier or Notifier()
    plugin, missing = await _plugin(config)  # first: the loop must not run while the channel listens before recovery
    with contextlib.ExitStack() as not_yet_taken:
        if plugin is not None:
            not_yet_taken.callback(plugin.close)
        engine = copy_engine(config)
        if engine is not None:
            not_yet_taken.callback(engine.close)
        daemon, journal, book = _daemon(config, directory, inherited, notifier, engine)
        daemon.plugin.offer(plugin)
        daemon.settings.on_changed.append(partial(_renew_allowed, daemon))
        not_yet_taken.pop_all()
    try:
        if missing is not None:
            if book is None:
                raise missing
            # Keeping the accepted work matters more than the configured policy.
            logger.warning("using the built-in policy: %s", missing, extra={"code": "plugin_missing"})
        negotiate_path, negotiate_socket = _listens(inherited, "negotiate", directory)
        fabric_path, fabric_socket = _listens(inherited, "fabric", directory)
        endpoints = Endpoints(
            negotiate_path, fabric_path, negotiate_socket=negotiate_socket, fabric_socket=fabric_socket
        )
        with _making_places():
            negotiator = Negotiator(daemon, config, endpoints)
        watchers = (
            AdminServer(daemon, *_listens(inherited, "admin", directory)),
            MetricsServer(config.operation.metrics_listen, metrics.pages(daemon)),
        )
        try:
            if book is None:
                daemon.plugin.adopt()
            else:
                Recovery(daemon, negotiator.admission, inherited.stored, negotiator.make_fabric).run()
            _drop_stored(inherited, daemon.store)
            with _making_places():
                await negotiator.start()
                for watcher in watchers:
                    await watcher.start()
            inherited.close_unused()
            agent.start(daemon)
            daemon.places.open()
            yield daemon, negotiator
        finally:
            daemon.places.close()  # socket files removed from here on are removed on purpose
            for watcher in watchers:
                await watcher.close()
            await negotiator.close()
    finally:
        daemon.close()
        if journal is not None and not daemon.is_durable:
            for name in (JOURNAL, LAST_GOOD):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, name))  # no process will resume it


async def _plugin(config: DaemonConfig) -> tuple[PluginProcess | None, PluginError | None]:
    """Start the policy plug-in. Returns its process, or the reason why it does not start."""
    try:
        return await started(config), None
    except PluginError as fault:
        return None, fault


def copy_engine(config: DaemonConfig) -> CopyEngine | None:
    """The configured copy engine; None: the daemon's default. Raises: VerbsError, DocaError: no suitable device."""
    if config.datapath.copy_engine == "cuda":
        return CudaCopyEngine()
    if config.datapath.copy_engine == "doca":
        return DocaCopyEngine(open_device(load(config.doca.path), Ability.COPY, config.doca.device))
    if config.datapath.copy_engine != "verbs":
        return None
    rdma = config.rdma
    return VerbsCopyEngine(
        Device(choose(device=rdma.device or None, netdev=rdma.netdev or None, near=rdma.near or None))
    )


def _daemon(
    config: DaemonConfig, directory: str, inherited: Inherited, notifier: Notifier, engine: CopyEngine | None
) -> tuple[Daemon, Journal | None, JobBook | None]:
    """Create the daemon. Also returns the journal that it writes, and the book of a former process if any."""
    with _making_places():
        make_runtime_directory(directory)
        channel = host_listener(config, directory, inherited)
    try:
        journal, replayed = _journal(config, directory)
    except BaseException:
        channel.close()
        raise
    book = replayed.book if replayed is not None else None
    now_ns = continued_clock(replayed.time_ns) if replayed is not None else time.monotonic_ns
    store = Store(notifier)
    daemon = Daemon(config, channel, engine=engine, now_ns=now_ns, journal=journal, book=book, store=store)
    if isinstance(channel, LoopbackChannelListener):
        daemon.places.add(channel.file, socket.SOCK_SEQPACKET, partial(daemon.host.pending.replace, channel))
    return daemon, journal, book


def continued_clock(last_ns: int, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> Callable[[], int]:
    """The clock of a daemon that resumes a journal whose last event happened at ``last_ns``: never earlier than that.

    `CLOCK_MONOTONIC` restarts with a reboot only, and another boot never resumes a journal. A process that is restored
    from a checkpoint, or started in another time namespace, still sees it go back; the book must not.
    """
    behind_ns = last_ns - monotonic_ns()
    if behind_ns <= 0:
        return monotonic_ns
    logger.warning(
        "the monotonic clock is %.3f s behind the journal's last event",
        behind_ns / 1e9,
        extra={"code": "clock_went_back"},
    )
    return lambda: monotonic_ns() + behind_ns


def host_listener(config: DaemonConfig, directory: str, inherited: Inherited) -> HostListener:
    """The listener for helpers. Raises: OSError, PlaceUnusable: it cannot be created. HostChannelError: keys, pyzmq,
    DOCA, its device or representor are unusable."""
    if config.datapath.host_channel == "zmq":
        from offpath.bindings.zeromq.listener import ZmqListener  # pyzmq: 3 MiB that the Unix channel does not need

        table = config.zmq
        return ZmqListener(table.bind, zmq_secret(table.key_file), read_allowed(table.allowed), table.domain)
    if config.datapath.host_channel == "comch":
        doca = config.doca
        return ComchListener(doca.path, doca.device, doca.representor, doca.comch_name)
    path, sock = _listens(inherited, "host", directory)
    return LoopbackChannelListener(path, config.allowed_host_uids(), sock)


def _renew_allowed(daemon: Daemon) -> None:
    """After a reload: read the ZeroMQ allow list again and disconnect peers that it no longer contains."""
    if daemon.settings.config.datapath.host_channel != "zmq":
        return
    try:
        cast("ZmqListener", daemon.host.listener).allow(read_allowed(daemon.settings.config.zmq.allowed))
    except HostChannelError as fault:  # it was valid a moment ago, when the configuration was checked
        logger.warning("%s: %s", "zmq.allowed", fault, extra={"code": "config_warning"})


@contextlib.contextmanager
def _making_places() -> Iterator[None]:
    """Raises: PlaceUnusable: instead of the OSError of a path or address that is in use, full or forbidden."""
    try:
        yield
    except OSError as fault:
        where = f"{fault.filename}: " if fault.filename else ""
        raise PlaceUnusable(f"{where}{fault.strerror or fault}") from None


def _listens(inherited: Inherited, name: str, directory: str) -> tuple[str, socket.socket | None]:
    """The socket's path (of the inherited socket, else where one will be created), and the inherited socket."""
    sock = inherited.listening.pop(name, None)
    return (sock.getsockname() if sock is not None else os.path.join(directory, LISTENING[name][0])), sock


def _journal(config: DaemonConfig, directory: str) -> tuple[Journal | None, Replayed | None]:
    """The journal to write, and the state it records if an earlier process of this boot and build was killed."""
    mib = config.durability.journal_mib
    if not mib:
        return None, None
    storage = MappedFile(os.path.join(directory, JOURNAL), journal_bytes(mib))
    try:
        ring, replayed, why = open_journal(storage, boot_id())
    except JournalCorrupt as fault:
        storage.close()
        raise JournalCorrupt(
            f"{directory}/{JOURNAL}: {fault}. Inspect it with `offpath replay`; to start without it and lose its"
            " contents, move it away"
        ) from None
    if replayed is None:
        logger.info("created a new journal: %s", why, extra={"code": "journal_new"})
    else:
        logger.info(
            "replayed %d events of lineage %s",
            replayed.event_count,
            ring.identity.lineage,
            extra={"code": "journal_replayed"},
        )
    journal = Journal(ring, replayed.times if replayed is not None else 0)
    if replayed is not None:
        journal.decided(replayed.unwritten, replayed.time_ns)
    return journal, replayed


def _drop_stored(inherited: Inherited, store: Store) -> None:
    """Remove stored descriptors that belong to no session."""
    while inherited.stored:
        name, fds = inherited.stored.popitem()
        logger.warning(
            "dropped %d stored descriptors named %s that belong to no session",
            len(fds),
            name,
            extra={"code": "stored_dropped"},
        )
        store.forget(name)
        close_all(fds)


async def serve(
    config: DaemonConfig,
    directory: str,
    ready: Callable[[Daemon], None],
    sources: Sources | None = None,
    inherited: Inherited | None = None,
    notifier: Notifier | None = None,
    refused: str = "",
) -> dict[str, int]:
    """Serve until SIGTERM or SIGINT; returns the closing statistics. SIGHUP reads ``sources`` again, if given.

    ``refused``: why the sources were refused; if not empty, ``config`` is the last good configuration.

    The notifier sends READY when all sockets listen, STOPPING at the end, and WATCHDOG in between as long as the
    daemon's self-check finds no fault.
    """
    logs.set_up(config.operation.log)
    notifier = notifier or Notifier()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(logs.loop_fault)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    interval_s = watchdog_interval_s()
    serving = running_daemon(config, directory, inherited, notifier)
    async with serving as (daemon, negotiator), asyncio.TaskGroup() as tasks:
        beside: set[asyncio.Task[None]] = set()

        def start(work: Coroutine[Any, Any, None], name: str) -> None:
            task = tasks.create_task(work, name=name)
            beside.add(task)
            task.add_done_callback(beside.discard)

        def hung_up() -> None:
            if not stop.is_set():
                start(_reload(reloader, daemon), "reload")

        daemon.requests.book_loop.on_broken = partial(os._exit, os.EX_SOFTWARE)
        if sources is not None:
            reloader = Reloader(daemon, negotiator, sources, directory)
            if refused:
                daemon.settings.is_last_good = True
                logger.error(
                    "configuration refused, using the last good one: %s",
                    refused,
                    extra={"code": "config_last_good"},
                )
            else:
                await reloader.keep()
            loop.add_signal_handler(signal.SIGHUP, hung_up)
        check = SelfCheck(daemon, negotiator) if interval_s is not None else None  # allocated before memory runs short
        gc.collect()
        gc.freeze()  # start-up objects are permanent; a full collection then scans request objects only
        is_announced = notifier.ready(f"lineage {daemon.identity.lineage}")
        ready(daemon)
        if not is_announced:
            start(announce(notifier, f"lineage {daemon.identity.lineage}"), "announce")
        if interval_s is not None and check is not None:
            start(feed_watchdog(notifier, interval_s, check), "feed-watchdog")
        await stop.wait()
        for task in list(beside):  # a reload too: it may wait forever (for a slow file, for the manager)
            task.cancel()
        notifier.stopping()
        return daemon.statistics()


async def _reload(reloader: Reloader, daemon: Daemon) -> None:
    daemon.store.notifier.reloading()
    if await reloader.reload():
        logs.set_up(daemon.settings.config.operation.log)
    await announce(daemon.store.notifier, f"configuration {daemon.settings.generation}")


async def announce(notifier: Notifier, status: str) -> None:
    """Send READY=1 until the service manager's socket accepts it; without it, a start or reload times out."""
    while not notifier.ready(status) and notifier.has_manager:
        await asyncio.sleep(ANNOUNCE_S)


def run(
    config: DaemonConfig,
    directory: str,
    ready: Callable[[Daemon], None],
    sources: Sources | None = None,
    refused: str = "",
) -> dict[str, int]:
    """Run `serve` on uvloop with the service manager's descriptors and the highest descriptor limit; blocks.

    Raises: HandoverError: the inherited descriptors are inconsistent.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return uvloop.run(serve(config, directory, ready, sources, take_inherited(), Notifier.from_environment(), refused))
