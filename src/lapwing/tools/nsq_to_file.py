"""nsq_to_file: write topics to files; a message is finished only once it is synced."""

import asyncio
import contextlib
import logging
import re
import time
from dataclasses import dataclass
from pathlib import Path

from lapwing import names
from lapwing.client.http import CallFailed, DaemonHttp
from lapwing.client.message import Message
from lapwing.client.options import ClientOptions
from lapwing.errors import LapwingError
from lapwing.net.logs import Log, parse_level
from lapwing.net.options import DURATION, option
from lapwing.tools.consuming import ConsumingOptions
from lapwing.tools.filelog import FileLog, Rules
from lapwing.tools.filenames import MISSING_REVISION, Names, host_text
from lapwing.tools.program import (
    CLIENT_OPTIONS,
    Failure,
    Signals,
    check,
    check_addresses,
    client_options,
    log_to_stderr,
    run,
)


@dataclass(frozen=True, slots=True)
class NsqToFileOptions(ConsumingOptions):
    """The flags of nsq_to_file."""

    channel: str = option("nsq_to_file", "consume through this channel")
    consumer_opt: tuple[str, ...] = option((), "set an option of the consumer: `name,value`")
    datetime_format: str = option("%Y-%m-%d_%H", "format <DATETIME> in names of files like this (strftime)")
    filename_format: str = option(
        "<TOPIC>.<HOST><REV>.<DATETIME>.log",
        "name the files like this (<TOPIC>, <HOST>, <PID>, <DATETIME>, <REV> are replaced; <REV> is needed for"
        " gzip, rotation and a work dir)",
    )
    gzip: bool = option(False, "compress the files with gzip")
    gzip_level: int = option(6, "compress with this level of gzip: 1 (fastest) to 9 (best)")
    host_identifier: str = option(
        "", "use this for <HOST>; it may contain <SHORT_HOST> and <HOSTNAME>", shown="the short host name"
    )
    http_client_connect_timeout: int = option("2s", "wait this long for an HTTP connection", kind=DURATION)
    http_client_request_timeout: int = option("5s", "wait this long for an HTTP answer", kind=DURATION)
    log_level: str = option("info", "set log verbosity: debug, info, warn, error, or fatal")
    log_prefix: str = option("[nsq_to_file] ", "log message prefix")
    max_in_flight: int = option(200, "take at most this many messages at a time, and between two syncs")
    output_dir: str = option("/tmp", "write the files to this directory")
    rotate_interval: int = option("0s", "start a new file this often", kind=DURATION)
    rotate_size: int = option(0, "start a new file when one has this many bytes")
    skip_empty_files: bool = option(False, "skip writing empty files")
    sync_interval: int = option("30s", "sync file to disk every duration", kind=DURATION)
    topic: tuple[str, ...] = option((), "consume this topic")
    topic_pattern: str = option("", "write only topics that match this pattern")
    topic_refresh: int = option("1m", "look for new topics this often", kind=DURATION)
    work_dir: str = option("", "write files here, and move complete ones to --output-dir", shown="the output dir")


def archive(options: NsqToFileOptions, rest: list[str] | None = None) -> int:
    """Write until a signal; return the exit status."""
    check(not rest, f"unknown arguments: [{' '.join(rest or [])}]")
    try:
        level = parse_level(options.log_level)
    except ValueError:
        raise Failure("--log-level is invalid") from None
    check(options.channel, "--channel is required")
    check(names.valid(options.channel), "--channel is not a valid name")
    check(options.http_client_connect_timeout > 0, "--http-client-connect-timeout should be positive")
    check(options.http_client_request_timeout > 0, "--http-client-request-timeout should be positive")
    check_addresses(options.nsqd_tcp_address, options.lookupd_http_address)
    bad_level = f"invalid --gzip-level value ({options.gzip_level}), should be 1-9"
    check(1 <= options.gzip_level <= 9, bad_level)
    check(options.topic or options.topic_pattern, "--topic or --topic-pattern required")
    without = "--lookupd-http-address must be specified when no --topic specified"
    check(options.topic or options.lookupd_http_address, without)
    check(options.max_in_flight > 0, "--max-in-flight should be positive")
    check(options.sync_interval > 0, "--sync-interval should be positive")
    check(options.topic_refresh > 0, "--topic-refresh should be positive")
    check(options.filename_format, "--filename-format is required")
    check("<REV>" in options.filename_format or not _rules(options).revisions, MISSING_REVISION)
    try:
        pattern = re.compile(options.topic_pattern)
    except re.error as error:
        raise Failure(f"--topic-pattern is invalid: {error}") from error
    log_to_stderr(logging.getLevelNamesMapping()[level.name])
    return run(lambda signals: Archive(options, pattern, Log(options.log_prefix, level)).run(signals))


class TopicArchive:
    """One topic: its consumer, its file, and the messages that are written but not yet synced."""

    def __init__(self, topic: str, options: NsqToFileOptions, settings: ClientOptions) -> None:
        self.topic = topic
        self._options = options
        rules = _rules(options)
        file_names = Names.of(
            topic,
            filename_format=options.filename_format,
            datetime_format=options.datetime_format,
            host=host_text(options.host_identifier),
            revisions=rules.revisions,
            gzip=options.gzip,
        )
        self._file = FileLog(file_names, rules)
        self.consumer = options.consumer(topic, self._take, settings, run="loop", auto_finish=False)
        self._arrived: list[Message] = []
        self._unsafe: list[Message] = []
        self._wake = asyncio.Event()
        self._hung_up = False
        self._stopping: asyncio.Task[None] | None = None

    def _take(self, message: Message) -> None:
        self._arrived.append(message)
        self._wake.set()

    def hang_up(self) -> None:
        """Close the file soon; the next message opens another."""
        self._hung_up = True
        self._wake.set()

    def stop(self) -> None:
        """End soon: stop consuming, sync, close."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self.consumer.stop())
            self._stopping.add_done_callback(lambda _: self._wake.set())
            self._wake.set()

    async def run(self) -> None:
        """Write messages until `stop`; an `OSError` ends it, and no unsynced message is finished."""
        loop = asyncio.get_running_loop()
        interval = self._options.sync_interval / 1e9
        tick = loop.time() + interval
        await self.consumer.start(need="none")
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(tick):
                    await self._wake.wait()
            self._wake.clear()
            fresh = await self._write_arrived()
            ticked = loop.time() >= tick
            if ticked:
                tick = loop.time() + interval
                fresh = await asyncio.to_thread(self._file.tick, time.time()) or fresh
            full = len(self._unsafe) >= self._options.max_in_flight
            if fresh or ticked or full or self._hung_up or self._stopping or (self._unsafe and self.consumer.starved):
                await self._make_safe()
            if self._hung_up:
                self._hung_up = False
                await asyncio.to_thread(self._file.close)
            if self._stopping is not None and self._stopping.done() and not self._arrived:
                await asyncio.to_thread(self._file.close)
                await self._stopping
                return

    async def _write_arrived(self) -> bool:
        arrived, self._arrived = self._arrived, []
        if not arrived:
            return False
        fresh = await asyncio.to_thread(self._write, [message.body for message in arrived])
        self._unsafe += arrived
        return fresh

    def _write(self, bodies: list[bytes]) -> bool:
        now = time.time()
        fresh = False
        for body in bodies:
            fresh = self._file.write(body, now) or fresh
        return fresh

    async def _make_safe(self) -> None:
        await asyncio.to_thread(self._file.sync)
        for message in reversed(self._unsafe):
            message.finish()
        self._unsafe.clear()


class Archive:
    """All topics, including those found later."""

    def __init__(self, options: NsqToFileOptions, pattern: re.Pattern[str], log: Log) -> None:
        self._options = options
        self._pattern = pattern
        self._log = log
        self._topics: dict[str, TopicArchive] = {}
        usable = [text for text in options.consumer_opt if _usable(text)]
        self._settings = client_options(usable, tool="nsq_to_file", max_in_flight=options.max_in_flight)

    async def run(self, signals: Signals) -> int:
        """Run until a signal; return the exit status."""
        signals.hangup_stops = False
        self._add_given()
        status = 0
        try:
            async with asyncio.TaskGroup() as group:
                for topic in self._topics.values():
                    group.create_task(topic.run())
                helpers = [group.create_task(self._hang_up_when_told(signals))]
                if not self._options.topic:
                    helpers.append(group.create_task(self._refresh(group)))
                await signals.stop.wait()
                for helper in helpers:
                    helper.cancel()
                for topic in self._topics.values():
                    topic.stop()
        except* OSError as errors:
            for error in errors.exceptions:
                self._log.fatal(str(error))
            status = 1
        return status

    def _add_given(self) -> None:
        for topic in dict.fromkeys(self._options.topic):
            if self._options.topic_pattern and not self._pattern.search(topic):
                self._log.warn(f"skipping topic {topic} (doesn't match pattern {self._options.topic_pattern})")
                continue
            self._add(topic)
        if self._options.topic and not self._topics:
            raise Failure("no topic to write: all that were given were refused or skipped")

    def _add(self, topic: str) -> TopicArchive | None:
        try:
            added = self._topics[topic] = TopicArchive(topic, self._options, self._settings)
        except LapwingError as error:
            self._log.error(f"couldn't create logger for new topic {topic}: {error}")
            return None
        return added

    async def _hang_up_when_told(self, signals: Signals) -> None:
        while True:
            await signals.hangup.wait()
            signals.hangup.clear()
            for topic in self._topics.values():
                topic.hang_up()

    async def _refresh(self, group: asyncio.TaskGroup) -> None:
        http = DaemonHttp(
            connect_timeout=self._options.http_client_connect_timeout / 1e9,
            request_timeout=self._options.http_client_request_timeout / 1e9,
            user_agent="nsq_to_file",
        )
        try:
            while True:  # at once, then at intervals: the first interval need not be spent idle
                for topic in await self._known(http):
                    if topic in self._topics or not self._pattern.search(topic):
                        continue
                    if (added := self._add(topic)) is not None:
                        group.create_task(added.run())
                await asyncio.sleep(self._options.topic_refresh / 1e9)
        finally:
            await http.aclose()

    async def _known(self, http: DaemonHttp) -> list[str]:
        found: dict[str, None] = {}
        for lookupd in dict.fromkeys(self._options.lookupd_http_address):
            try:
                answer = await http.get(lookupd, "/topics")
            except CallFailed as error:
                self._log.error(f"could not retrieve topic list: {error}")
                continue
            found.update(dict.fromkeys(answer.get("topics") or ()))
        return sorted(found)


def _rules(options: NsqToFileOptions) -> Rules:
    return Rules(
        Path(options.output_dir),
        Path(options.work_dir or options.output_dir),
        gzip_level=options.gzip_level if options.gzip else 0,
        rotate_size=options.rotate_size,
        rotate_interval=options.rotate_interval / 1e9,
        skip_empty_files=options.skip_empty_files,
    )


def _usable(text: str) -> bool:
    try:
        CLIENT_OPTIONS.from_flag(text)
    except ValueError:
        return False
    return True
