"""Build nsqd from its options; start and stop it."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import ssl
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from lapwing import kernel
from lapwing.broker.broker import Broker
from lapwing.broker.keeper.storage import DiskStorage
from lapwing.broker.settings.options import Options
from lapwing.errors import ConfigError, LogError, RemoteError
from lapwing.log.clock_file import SavedClock
from lapwing.log.offline.nsq_queues import undrained
from lapwing.names import NSQ_VERSION
from lapwing.net.logs import Log
from lapwing.net.machine import boot_id, clock_id
from lapwing.net.server.browsers import BrowserGuard
from lapwing.net.server.http import HttpLimits, HttpServer
from lapwing.net.server.routes import Router, RouteTable, TlsRequired
from lapwing.net.sockets import polled
from lapwing.net.sockets.listen import CannotListen, Listener, bind
from lapwing.net.sockets.tls import server_context
from lapwing.nsqd.catalog_writer import CatalogWriter
from lapwing.nsqd.clock import Clock
from lapwing.nsqd.doors.connection import Connection
from lapwing.nsqd.doors.context import ListenerContext
from lapwing.nsqd.doors.nsq import NsqProtocol
from lapwing.nsqd.http.errors import refusal
from lapwing.nsqd.stats.memory_guard import CHECK_SECONDS, NEVER, MemoryGuard
from lapwing.nsqd.sync import Syncer
from lapwing.nsqd.turn import Turn
from lapwing.sessions.nsq import limits_of
from lapwing.wire.nsq.identify import Terms

if TYPE_CHECKING:
    from lapwing.errors import Fenced
    from lapwing.nsqd.doors.auth import Authenticator
    from lapwing.nsqd.doors.intakes import Intakes
    from lapwing.nsqd.remote_start import RemoteStart
    from lapwing.nsqd.replicator import Replicator

_TRIM: Final = 2.0  # seconds between two looks at which segments may go
_TRIM_ALL: Final = 60.0  # the same for topics in which nothing moves
_SLICE: Final = 25  # topics that are saved before others have their turn
_LAST_WORDS: Final = 0.2  # seconds between the last answers and the end of a node that was replaced
_GRACE: Final = 2.0  # seconds for HTTP answers under way at a stop
_CLOCK_MOVED: Final = 1_000_000  # ns that the broker's time has moved by when it is saved again
_NAMED: Final = 5  # disk queues of NSQ that the warning names
_MOST_FILES: Final = 131_072  # that logs and clients keep open
_LEAST: Final = {"remote_batch_bytes": 65_536, "remote_checkpoint": 1_048_576}
_ABOVE_ZERO: Final = (  # else nsqd would do nothing but this one thing, or never
    "checkpoint_interval", "http_client_connect_timeout", "http_client_request_timeout", "msg_timeout",
    "queue_scan_selection_count", "statsd_interval", "sync_timeout",
)  # fmt: skip


class Daemon:
    """One nsqd."""

    def __init__(self, options: Options, log: Log) -> None:
        self.options = options
        self.log = log
        self.clock = Clock(boot=clock_id())
        self._saved_clock: SavedClock | None = None
        self.started = self.clock.now()
        self.tcp: Listener | None = None
        self.http: Listener | None = None
        self.https: Listener | None = None
        self.redis: Listener | None = None
        self.redis_tls: Listener | None = None
        self._servers: list[HttpServer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping: list[Callable[[], Awaitable[None]]] = []
        self._connections: set[Connection] = set()
        self._redis_connections: set[Connection] = set()
        self._polled: polled.PolledConnections | None = None
        self._intakes: Intakes | None = None
        self._remote: RemoteStart | None = None
        self.replicator: Replicator | None = None
        self.fenced = asyncio.Event()  # another process has the remote log

    # --- starting ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Lock the data path, bind, restore topics, serve. Raises `ConfigError`, `LogError` or `OSError`."""
        options = self.options
        _check(options)
        descriptors = _raise_file_limit()
        if options.durability == "replicated":
            await self._own_remote_log(descriptors // 2)
            options = self.options
        else:
            self.storage = DiskStorage(
                options.data_path,
                options.node_id,
                options.log_options,
                now=self.clock.now,
                report=self.log.warn,
                boot_id=boot_id(),
                open_files=descriptors // 2,  # the others are for clients
            )
        self._resume_clock()
        try:
            tls = self._tls()
            self.tcp = bind(options.tcp_address)
            self.http = bind(options.http_address) if options.http_address else None
            self.https = bind(options.https_address) if tls is not None and options.https_address else None
            self.redis = bind(options.redis_address) if options.redis_address else None
            self.redis_tls = bind(options.redis_tls_address) if tls is not None and options.redis_tls_address else None
            self.options = options = self._with_ports(options)
            self.broker = Broker(options, self.storage, report=self.log.error)
            self.broker.skew = self.clock.skew
            self._restore()
        except BaseException:
            self.close_listeners()
            self.storage.close()
            if self._remote is not None:
                await self._remote.give_back(self.log)
            raise
        self.broker.keeper.save_catalog()
        loop = asyncio.get_running_loop()
        self.turn = Turn(self.broker, self.clock, loop)
        await self._build(tls)
        self._log_addresses()
        self._log_nsq_queues()
        _settle_garbage()
        self.turn.schedule_flush()

    async def _own_remote_log(self, open_files: int) -> None:
        """Own the remote log, and have the data path hold the same. Raises as `start`, or `RemoteError`."""
        from lapwing.nsqd.remote_start import RemoteStart

        self._remote = await RemoteStart.own(self.options, now=self.clock.now, log=self.log)
        self.options = replace(self.options, node_id=self._remote.node)
        self.storage = self._remote.storage(self.options, now=self.clock.now, log=self.log, open_files=open_files)

    def _resume_clock(self) -> None:
        """Continue the time of the last process, by which it has saved its deadlines."""
        saved = self.storage.clock_file.load()
        if saved is not None:
            self.clock.resume(saved)
        self.started = self.clock.now()
        self._save_clock()

    def _save_clock(self) -> None:
        """Save the time for the next process, if it is not where the saved one leads to."""
        saved, before = self.clock.saved(), self._saved_clock
        if before is not None:
            moved = max(abs(saved.since_boot - before.since_boot), abs(saved.skew - before.skew))
            if moved < _CLOCK_MOVED:
                return
        try:
            self.storage.clock_file.save(saved)
        except OSError as error:  # the next checkpoint tries again
            self.log.debug(f"failed to save the clock: {error}")
        else:
            self._saved_clock = saved

    def _restore(self) -> None:
        """Restore topics and channels. Raises `LogError`."""
        try:
            self.broker.restore(now=self.clock.now())
        except LogError as error:
            raise LogError(f"failed to load metadata - {error}") from error

    async def _build(self, tls: ssl.SSLContext | None) -> None:
        """Build the listeners, and the connections to nsqlookupd, auth servers and statsd."""
        options, broker, turn = self.options, self.broker, self.turn
        from lapwing.log.audit_file import AuditFile
        from lapwing.nsqd.http.audit import NodeAudit
        from lapwing.nsqd.http.log import LogApi
        from lapwing.nsqd.http.routes import Http
        from lapwing.nsqd.http.staging import Staged
        from lapwing.nsqd.stats.metrics import FsyncTimes

        times = FsyncTimes()
        self.syncer: Syncer | Replicator
        if self._remote is not None:
            self.syncer = self.replicator = self._remote.replicator(
                broker, turn.schedule_flush, times.observe, self.clock.now, self.log, self._end_fenced
            )
        else:
            self.syncer = Syncer(broker, turn.schedule_flush, times.observe)
        turn.on_unsynced = self.syncer.kick
        self._stopping.append(self.syncer.stop)
        catalog = CatalogWriter(broker, self.storage.catalog)
        broker.keeper.save_catalog_later = catalog.kick
        self._stopping.append(catalog.stop)
        auth = None
        if options.snappy and not _has_snappy():
            self.log.info("clients get no snappy: cramjam is not installed (pip install 'lapwing[snappy]')")
        if options.auth_http_addresses:
            from lapwing.nsqd.doors.auth import Authenticator

            auth = Authenticator(options, self.clock.now)
        await self._start_peers()
        if self._uses_epoll and kernel.COMPILED:
            from lapwing.nsqd.doors.intakes import Intakes

            self._intakes = Intakes(turn, limits_of(options), waits=options.answers_wait)
        door = ListenerContext(
            broker, turn, options, limits_of(options), _terms(options, tls=tls is not None), self.log, tls, auth,
            self._connections, self.peers, self._intakes,
        )  # fmt: skip
        http = Http(self, times)
        self.log_api = log_api = LogApi(broker, self.clock.now, turn.schedule_flush, self._about)
        staged = Staged(broker, turn, self.syncer, self.log, self.storage.disk)
        staged.recover()
        staged.start()
        self._stopping.append(staged.stop)
        self._redrives = http.redrives
        for runner in (http.redrives, http.schedules):
            runner.wake()
            self._stopping.append(runner.stop)
        audit = NodeAudit(AuditFile(options.data_path or "."), broker, self.log)
        self.routes = routes = audit.watched([*http.routes(), *log_api.routes(), *staged.routes()])
        table: RouteTable = Router(routes)
        if auth is not None:
            from lapwing.nsqd.http.authorization import GuardedRoutes

            table = GuardedRoutes(routes, auth, self.clock.now, self.log)
        names = (os.uname().nodename, options.broadcast_address, *options.allowed_hosts)
        table = BrowserGuard(table, names=names, program="nsqd")
        plain: RouteTable = table
        if options.tls_required == 2:
            plain = TlsRequired(self.https.port if self.https else 0)
        if self.http is not None:
            await self._serve_http(self.http, plain, None)
        if self.https is not None:
            await self._serve_http(self.https, table, tls)
        assert self.tcp is not None
        await self._serve_plain(self.tcp, lambda: Connection(door, partial(NsqProtocol, door)))
        if self.redis is not None or self.redis_tls is not None:
            await self._serve_redis(auth, tls)
        self._every(options.checkpoint_interval / 1e9, self._checkpoint)
        self._every(_TRIM, self._trim)
        self._every(_TRIM_ALL, self._trim_all)
        self._every(options.sync_timeout / 1e9, self.syncer.sync_all)
        self._every(1.0, self._align)
        if options.max_memory != NEVER:
            guard = MemoryGuard(options.max_memory, broker, self.log)

            async def check_memory() -> None:
                guard.check()

            self._every(CHECK_SECONDS, check_memory)
        if options.statsd_address:
            from lapwing.nsqd.stats.statsd import Statsd

            statsd = Statsd(broker, options, self.clock.now, self.log)
            await statsd.start()
            self._stopping.append(statsd.stop)

    async def _start_peers(self) -> None:
        from lapwing.nsqd.lookupd.peer import Peers

        self.peers = Peers(self.broker, self.options, self.clock.now, self.turn.schedule_flush, self.log)
        await self.peers.start()
        self.turn.on_changes = self.peers.send_changes
        self._stopping.append(self.peers.stop)

    @property
    def _uses_epoll(self) -> bool:
        return self.options.tcp_transport != "asyncio" and polled.available

    async def _serve_plain(self, listener: Listener, factory: Callable[[], asyncio.Protocol]) -> None:
        """Serve TCP clients without TLS, NSQ's and Redis's in one epoll set."""
        if not self._uses_epoll:
            await listener.serve(factory)
            return
        if self._polled is None:
            self._polled = _polled_connections(self.turn, self._intakes)
        listener.serve_polled(self._polled, factory)

    async def _serve_http(self, listener: Listener, table: RouteTable, tls: ssl.SSLContext | None) -> None:
        limits = HttpLimits(connections=self.options.max_http_connections)
        server = HttpServer(table, limits=limits, log=self.log.info, broken=self._broken, translate=refusal)
        self._servers.append(server)
        await listener.serve(server.protocol, tls=tls)

    async def _serve_redis(self, auth: Authenticator | None, tls: ssl.SSLContext | None) -> None:
        from lapwing.nsqd.doors.redis import RedisDoor

        listener = self.redis or self.redis_tls
        assert listener is not None
        door = RedisDoor(
            self.broker, self.turn, self.log, auth, self.peers, port=max(listener.port, 0), started=self.started,
            intakes=self._intakes,
        )  # fmt: skip
        self.turn.gatherers.append(door.renew_shares)
        self.turn.watchers.append(door.end_turn)
        self._redis_connections = door.connections
        if self.redis is not None:
            await self._serve_plain(self.redis, door.connect)
        if self.redis_tls is not None:
            await self.redis_tls.serve(door.connect, tls=tls)

    def _broken(self, request: str, error: BaseException) -> None:
        self.log.error(f"{request}: {type(error).__name__}: {error}")

    def _tls(self) -> ssl.SSLContext | None:
        options = self.options
        if not options.tls_cert and not options.tls_key:
            return None
        return server_context(
            options.tls_cert,
            options.tls_key,
            least=options.tls_min_version,
            client_auth=options.tls_client_auth_policy,
            root_ca=options.tls_root_ca_file,
            warn=self.log.warn,
        )

    def _with_ports(self, options: Options) -> Options:
        assert self.tcp is not None
        return replace(
            options,
            broadcast_tcp_port=options.broadcast_tcp_port or max(self.tcp.port, 0),
            broadcast_http_port=options.broadcast_http_port or (max(self.http.port, 0) if self.http else 0),
        )

    def _about(self) -> dict[str, object]:
        """Return the identity of the node, for readers of logs."""
        options = self.options
        port = options.broadcast_http_port
        return {"node_id": options.node_id, "broadcast_address": options.broadcast_address, "http_port": port}

    def _log_addresses(self) -> None:
        exposed = []
        named = ("TCP", self.tcp), ("HTTP", self.http), ("HTTPS", self.https), ("Redis", self.redis)
        for name, listener in (*named, ("Redis over TLS", self.redis_tls)):
            if listener is not None:
                self.log.info(f"{name}: listening on {listener.address}")
                if not listener.local:
                    exposed.append(listener.address)
        if exposed and not self.options.auth_http_addresses:
            self.log.warn(
                f"no authentication on {', '.join(exposed)}: every host that reaches it can read, publish and delete; "
                "set --auth-http-address, or listen on 127.0.0.1 (see `lapwing docs security`)"
            )

    def _log_nsq_queues(self) -> None:
        queues = undrained(self.options.data_path)
        if queues:
            names = ", ".join(queue.name for queue in queues[:_NAMED]) + (", ..." if len(queues) > _NAMED else "")
            self.log.warn(
                f"{sum(queue.depth for queue in queues)} messages in disk queues of NSQ ({names}) are not delivered: "
                "import them with `lapwing import-nsqd` (see `lapwing docs from-nsq`)"
            )

    # --- running -----------------------------------------------------------------------------------------------

    def remote_figures(self) -> dict[str, Any] | None:
        """Return the figures of the remote log; None where there is none."""
        return None if self.replicator is None else self.replicator.figures()

    def _every(self, seconds: float, action: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def repeat() -> None:
            while True:
                await asyncio.sleep(seconds)
                try:
                    await action()
                except Exception as error:  # a mistake of ours must not end checkpoints for good
                    self.log.error(f"{action.__name__}: {type(error).__name__}: {error}")

        self._tasks.append(asyncio.get_running_loop().create_task(repeat()))

    def _end_fenced(self, error: Fenced) -> None:
        """Deliver nothing any more, and end: another process has the remote log."""
        now = self.clock.now()
        self.broker.begin_drain(now=now, deadline=now)
        assert self.broker.drain is not None
        self.broker.drain.look(now)
        self.close_listeners()
        for connection in [*self._connections, *self._redis_connections]:
            connection.flush()
        self.log.fatal(f"this node was replaced: {error}")
        self.fenced.set()

    async def _checkpoint(self) -> None:
        await self._align()
        if self.replicator is not None:
            self.replicator.note_changes()
        await _share_time(self._save_changes())
        self._redrives.resume()  # of a topic that could be opened now
        if self.broker.has_work or self.broker.changes:
            self.turn.schedule_flush()
        await _share_time(iter(lambda: self.broker.keeper.pack_idle(self.clock.now()), False))

    def _save_changes(self) -> Iterator[None]:
        """Save every topic that has changed, some at each step."""
        work = self.broker.begin_checkpoint(now=self.clock.now())
        while work.advance(_SLICE, now=self.clock.now()):
            yield

    async def _trim(self) -> None:
        await _share_time(iter(lambda: self.broker.trim(now=self.clock.now()), True))

    async def _trim_all(self) -> None:
        self.broker.trim(now=self.clock.now(), everywhere=True)

    async def _align(self) -> None:
        gap = self.broker.skew = self.clock.align()
        self._save_clock()
        if abs(gap) > 1_000_000_000:
            self.log.debug(f"the machine's clock differs by {gap / 1e9:.1f} s; deadlines follow it slowly")

    # --- stopping ----------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Close listeners and connections, save everything, release the data path."""
        self.close_listeners()
        for task in self._tasks:
            task.cancel()
        for connection in list(self._connections):
            connection.hang_up()
        for client in list(self._redis_connections):
            client.hang_up()
        self.log_api.wake()
        for server in self._servers:
            await server.shutdown(_GRACE)
        self.turn.alarm.stop()
        for stop in reversed(self._stopping):
            await stop()
        await asyncio.sleep(0)  # connections close, and requeue what they held
        self.broker.close(now=self.clock.now())
        if self.replicator is not None and self._remote is not None:
            await self.replicator.release()
            self._remote.close()

    def close_listeners(self) -> None:
        """Stop listening everywhere."""
        for listener in (self.tcp, self.http, self.https, self.redis, self.redis_tls):
            if listener is not None:
                listener.close()


def _check(options: Options) -> None:
    """Refuse options that cannot work. Raises `ConfigError`."""
    if options.tcp_transport == "epoll" and not polled.available:
        raise ConfigError("--tcp-transport=epoll needs Linux and an installation with a C compiler: use auto")
    if not 1 <= options.max_deflate_level <= 9:
        raise ConfigError("--max-deflate-level must be [1,9]")
    if not 0 <= options.node_id < 1024:
        raise ConfigError("--node-id must be [0,1024)")
    if options.auth_http_request_method.lower() not in ("get", "post"):
        raise ConfigError("--auth-http-request-method must be post or get")
    for quantile in options.e2e_processing_latency_percentiles:
        if not 0 < quantile <= 1:
            raise ConfigError(f"invalid E2E processing latency percentile: {quantile}")
    if options.tls_required and not (options.tls_cert and options.tls_key):
        raise ConfigError("cannot require TLS client connections without TLS key and cert")
    if options.auth_http_addresses and find_spec("re2") is None:
        raise ConfigError("--auth-http-address needs google-re2: pip install 'lapwing[re2]'")
    if options.redis_tls_address and not (options.tls_cert and options.tls_key):
        raise ConfigError("--redis-tls-address needs a certificate: give --tls-cert and --tls-key")
    if options.redis_address and options.tls_required:
        raise ConfigError("Redis clients cannot begin TLS later: with --tls-required use --redis-tls-address instead")
    if options.durability == "replicated":
        if not options.remote:
            raise ConfigError("--durability=replicated needs a place for the remote log: give --remote=URL")
        if options.remote_interval < 0:
            raise ConfigError("--remote-interval must not be negative")
        for name, least in _LEAST.items():
            if getattr(options, name) < least:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least {least}")
        if options.remote_lag < 1_000_000_000:
            raise ConfigError("--remote-lag must be at least 1s")
    else:
        defaults = Options()
        for name in ("remote", "take_over", "remote_interval", "remote_lag", *_LEAST):
            if getattr(options, name) != getattr(defaults, name):
                flag, durability = f"--{name.replace('_', '-')}", options.durability
                raise ConfigError(f"{flag} has no effect with --durability={durability}: give --durability=replicated")
    for name in _ABOVE_ZERO:
        if getattr(options, name) <= 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be above 0")
    if options.max_bytes_per_file < 4096:
        raise ConfigError("--max-bytes-per-file must be at least 4096")


def _terms(options: Options, *, tls: bool) -> Terms:
    """Return what clients are granted in IDENTIFY."""
    return Terms(
        version=NSQ_VERSION,
        max_rdy=options.max_rdy_count,
        msg_timeout=options.msg_timeout,
        max_msg_timeout=options.max_msg_timeout,
        max_heartbeat_interval=options.max_heartbeat_interval,
        max_output_buffer_size=options.max_output_buffer_size,
        output_buffer_timeout=options.output_buffer_timeout,
        min_output_buffer_timeout=options.min_output_buffer_timeout,
        max_output_buffer_timeout=options.max_output_buffer_timeout,
        tls=tls,
        snappy=options.snappy and _has_snappy(),
        deflate=options.deflate,
        max_deflate_level=options.max_deflate_level,
        auth_required=bool(options.auth_http_addresses),
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
    )


def _has_snappy() -> bool:
    return find_spec("cramjam") is not None  # `compression` itself is loaded with the first client that asks for it


async def _share_time(steps: Iterable[object]) -> None:
    """Run through `steps`; others have at least half of the time meanwhile."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in steps:
        await asyncio.sleep(loop.time() - began)
        began = loop.time()


def _raise_file_limit() -> int:
    """Allow as many open files as the system does; return how many that are, up to what a node ever needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(hard, _MOST_FILES) if hard >= 0 else _MOST_FILES


def _settle_garbage() -> None:
    """Exclude the objects of the start from garbage collection, and collect seldom: there are next to no cycles.

    A collection first would find 450 objects, however many topics there are, and look at all the others for that.
    """
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)
    gc.enable()


async def run(options: Options, log: Log) -> int:
    """Run nsqd until SIGINT or SIGTERM; return the exit status."""
    import signal

    loop = asyncio.get_running_loop()
    daemon = Daemon(options, log)
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            log.warn("second signal: exiting without saving")
            os._exit(1)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    ignored = "SIGHUP ignored: log lines go to stderr, there is no file to reopen"
    loop.add_signal_handler(signal.SIGHUP, lambda: log.info(ignored))
    try:
        await daemon.start()
    except (ConfigError, LogError, RemoteError, OSError) as error:
        log.fatal(f"failed to instantiate nsqd - {error.strerror if isinstance(error, CannotListen) else error}")
        return 1
    if daemon.replicator is None:
        await stop.wait()
    elif await _first_of(stop, daemon.fenced) is daemon.fenced:
        await asyncio.sleep(_LAST_WORDS)  # the errors reach those who wait for an answer
        log.drain()
        sys.stderr.flush()
        os._exit(3)  # nothing more is written or sent
    log.info("stopping")
    await daemon.stop()
    log.info("bye")
    log.drain()
    sys.stderr.flush()
    if daemon.replicator is not None:
        os._exit(0)  # the engine may not answer a request that is still under way
    return 0


async def _first_of(*events: asyncio.Event) -> asyncio.Event:
    """Return the event that is set first; the first of them, if several are."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    return next(event for event in events if event.is_set())


def _polled_connections(turn: Turn, intakes: Intakes | None) -> polled.PolledConnections:
    loop = asyncio.get_running_loop()
    if intakes is None:
        return polled.PolledConnections(loop, begin=turn.begin, end=turn.end)
    return polled.PolledConnections(loop, begin=intakes.begin, end=turn.end, taken=intakes.taken)
