"""The settings in force on a node: change them, save them in the catalog, and give them to topics and channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from lapwing.broker.channel.holds import Hold
from lapwing.broker.failures import dead_letters
from lapwing.broker.settings import definitions as settings
from lapwing.broker.settings import policies
from lapwing.broker.settings.definitions import ChannelSettings, Layer, Own, Resolved, TopicSettings
from lapwing.broker.settings.options import Options
from lapwing.broker.settings.policies import Policies, Policy
from lapwing.errors import NotSaved, SettingRefused
from lapwing.log.catalog import TopicEntry

if TYPE_CHECKING:
    from lapwing.broker.broker import Broker
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.topic.cold import ColdChannel, ColdTopic
    from lapwing.broker.topic.topic import Topic

_CHANNEL_FLAGS: Final = ("msg_timeout",)
_TOPIC_FLAGS: Final = ("retention_bytes", "retention_age", "retention_count", "max_msg_size")
_MOST_DEDUP_TOPICS: Final = 100  # whose names a client gets
_FROM_TOPIC: Final = ("message_ttl",)  # settings of a topic that its channels take over


class SettingsStore:
    """All settings of one node.

    A value comes from the first of: the channel (or topic) itself, the matching policy with the highest priority that
    sets it, the topic for a channel, the flag, the default. `save` writes the catalog and returns whether it could.
    """

    def __init__(self, options: Options, broker: Broker, save: Callable[[], bool]) -> None:
        self.policies = Policies()
        self._broker = broker
        self._save = save
        self._channel_flags = _flags(options, _CHANNEL_FLAGS, settings.CHANNEL)
        self._topic_flags = _flags(options, _TOPIC_FLAGS, settings.TOPIC_LEVEL)
        self._max_msg_timeout = options.max_msg_timeout
        self._max_msg_size = options.max_msg_size
        self._longest_delay = max(options.max_req_timeout, options.longest_defer)
        # shared by all topics and channels without settings
        self.plain_channel = settings.resolve(ChannelSettings, [self._channel_flags])
        self.plain_topic = settings.resolve(TopicSettings, [self._topic_flags])

    # --- values in force -----------------------------------------------------------------------------------------

    def of_channel(self, channel: Channel) -> ChannelSettings:
        """Return what holds for a channel."""
        return self._of_channel(channel.topic, channel)

    def _of_channel(self, topic: Topic | ColdTopic, channel: Channel | ColdChannel) -> ChannelSettings:
        if not channel.settings and not topic.settings and not len(self.policies):
            return self.plain_channel
        found = settings.resolve(ChannelSettings, self._channel_layers(topic, channel.name, channel.settings))
        return _keeping_letters(found) if channel.name == dead_letters.CHANNEL else found

    def of_topic(self, topic: Topic | ColdTopic) -> TopicSettings:
        """Return what holds for a topic."""
        if not topic.settings and not len(self.policies):
            return self.plain_topic
        return settings.resolve(TopicSettings, self._topic_layers(topic, topic.settings))

    def for_names(self, topic: str, channel: str) -> ChannelSettings:
        """Return what holds, or would hold, for a channel by its name."""
        known = self._broker.topics.get(topic)
        found = known.channels.get(channel) if known is not None else None
        if known is not None and found is not None:
            return self._of_channel(known, found)
        matching = policies.layers(self.policies.of_channel(topic, channel))
        return settings.resolve(ChannelSettings, [*matching, self._channel_flags])

    def dedup_topics(self) -> list[str]:
        """Return names and patterns of the topics that recognise a repeated message-id, `*` if they are very many."""
        found = [topic.name for topic in self._broker.topics.values() if topic.dedup is not None]
        for policy in self.policies.all():
            if policy.settings.get("dedup_window", "0s") != "0s" and policy.topics not in found:
                found.append(policy.topics)
        return found if len(found) <= _MOST_DEDUP_TOPICS else ["*"]

    def longest_wait(self, entry: TopicEntry) -> int:
        """Return the longest time, ns, that a message of a topic of the catalog may be deferred."""
        retries = [self.plain_channel.retry_max]
        for line in entry.channels:
            matching = policies.layers(self.policies.of_channel(entry.name, line.name))
            retries.append(settings.resolve(ChannelSettings, [("channel", line.settings), *matching]).retry_max)
        return max(self._longest_delay, *retries)

    def explain_channel(self, channel: Channel) -> dict[str, Resolved]:
        """Return every setting of a channel with its value and where it comes from."""
        return self._explain_channel(channel.topic, channel)

    def _explain_channel(self, topic: Topic | ColdTopic, channel: Channel | ColdChannel) -> dict[str, Resolved]:
        found = settings.explain(ChannelSettings, self._channel_layers(topic, channel.name, channel.settings))
        if found["dead_topic"].value is None:
            name = settings.default_dead_topic(topic.name, channel.name)
            found["dead_topic"] = Resolved(name, found["dead_topic"].source)
        return found

    def explain_topic(self, topic: Topic | ColdTopic) -> dict[str, Resolved]:
        """Return every setting of a topic with its value and where it comes from."""
        return settings.explain(TopicSettings, self._topic_layers(topic, topic.settings))

    def given_to_channel(self, topic: Topic | ColdTopic, channel: Channel | ColdChannel) -> dict[str, Any]:
        """Return the settings of a channel that are not the defaults."""
        if self._of_channel(topic, channel) is self.plain_channel:
            return {}
        explained = self._explain_channel(topic, channel).items()
        return {name: each.value for name, each in explained if each.source != "default"}

    def given_to_topic(self, topic: Topic | ColdTopic) -> dict[str, Any]:
        """Return the settings of a topic that are not the defaults."""
        if self.of_topic(topic) is self.plain_topic:
            return {}
        return {name: each.value for name, each in self.explain_topic(topic).items() if each.source != "default"}

    def _channel_layers(self, topic: Topic | ColdTopic, name: str, own: Own) -> list[Layer]:
        shared = {setting: topic.settings[setting] for setting in _FROM_TOPIC if setting in topic.settings}
        matching = policies.layers(self.policies.of_channel(topic.name, name))
        # a dead-letter topic that a policy gives to all topics is not its own
        matching = [(policy, _without(values, "dead_topic", topic.name)) for policy, values in matching]
        return [("channel", own), *matching, ("topic", shared), self._channel_flags]

    def _topic_layers(self, topic: Topic | ColdTopic, own: Mapping[str, Any]) -> list[Layer]:
        return [("topic", own), *policies.layers(self.policies.of_topic(topic.name)), self._topic_flags]

    # --- changes -------------------------------------------------------------------------------------------------

    def change_channel(self, channel: Channel, changes: Any, *, now: int) -> None:
        """Change a channel's own settings; null removes one. Raises `SettingRefused` or `NotSaved`, with no change."""
        wall = now + channel.topic.skew
        own = settings.changed(settings.CHANNEL, "channel", channel.settings, changes, now=wall)
        resolved = settings.resolve(ChannelSettings, self._channel_layers(channel.topic, channel.name, own))
        settings.check_channel(resolved, topic=channel.topic.name, max_msg_timeout=self._max_msg_timeout)
        before, channel.settings = channel.settings, own
        try:
            self._write()
        except NotSaved:
            channel.settings = before
            raise
        self.apply_channel(channel, now=now)

    def change_topic(self, topic: Topic, changes: Any, *, now: int) -> None:
        """Change a topic's own settings; null removes one. Raises `SettingRefused` or `NotSaved`, with no change."""
        own = settings.changed(settings.TOPIC_LEVEL, "topic", topic.settings, changes, now=now + topic.skew)
        resolved = settings.resolve(TopicSettings, self._topic_layers(topic, own))
        settings.check_topic(resolved, max_msg_size=self._max_msg_size)
        before = topic.keep_settings(own)
        try:
            self._write()
        except NotSaved:
            topic.keep_settings(before)
            raise
        self.apply_topic(topic, now=now)

    def give_topic(self, topic: Topic, own: Mapping[str, Any]) -> None:
        """Give a topic that has just been created settings of its own; it is saved with them."""
        topic.keep_settings({**topic.settings, **own})
        topic.effective = self.of_topic(topic)

    def put_policy(self, policy: Policy, *, now: int) -> None:
        """Add or replace a policy. Raises `SettingRefused` or `NotSaved`, with no change.

        A policy whose settings contradict those of a topic or channel that it matches is refused.
        """
        before = self.policies.get(policy.name)
        self.policies.put(policy)
        try:
            self._check_all(policy)
            self._write()
        except (SettingRefused, NotSaved):
            self.policies.remove(policy.name)
            if before is not None:
                self.policies.put(before)
            raise
        self._apply_matching([policy, *([before] if before else [])], now=now)

    def remove_policy(self, name: str, *, now: int) -> bool:
        """Remove a policy; return whether there was one. Raises `NotSaved`, with no change."""
        before = self.policies.get(name)
        if before is None:
            return False
        self.policies.remove(name)
        try:
            self._write()
        except NotSaved:
            self.policies.put(before)
            raise
        self._apply_matching([before], now=now)
        return True

    def _check_all(self, policy: Policy) -> None:
        alone = settings.resolve(ChannelSettings, [("", policy.settings), self._channel_flags])
        settings.check_channel(alone, topic="", max_msg_timeout=self._max_msg_timeout)
        settings.check_topic(
            settings.resolve(TopicSettings, [("", policy.settings), self._topic_flags]), max_msg_size=self._max_msg_size
        )
        for topic in self._broker.topics.values():
            for channel in topic.channels.values():
                if policy.matches(topic.name, channel.name):
                    try:
                        resolved = self._of_channel(topic, channel)
                        settings.check_channel(resolved, topic=topic.name, max_msg_timeout=self._max_msg_timeout)
                    except SettingRefused as error:
                        raise SettingRefused(f"with this policy, for {topic.name}/{channel.name}: {error}") from error

    def _write(self) -> None:
        if not self._save():
            raise NotSaved("nsqd.dat could not be written: nothing was changed; see /ping for the reason")

    def end_pause(self, channel: Channel) -> None:
        """End a pause that has an end, wherever it comes from; the caller saves the catalog."""
        channel.settings.pop("paused_until", None)
        if self.of_channel(channel).paused_until:
            channel.settings["paused_until"] = ""  # beats the policy
        channel.effective = self.of_channel(channel)
        channel.lift(Hold.PAUSED_UNTIL)

    # --- in force ------------------------------------------------------------------------------------------------

    def apply_channel(self, channel: Channel, *, now: int) -> None:
        """Put a channel's settings in force."""
        effective = self.of_channel(channel)
        if effective is not channel.effective:
            channel.apply(effective, now=now)
            channel.topic.set_admission()

    def apply_topic(self, topic: Topic, *, now: int) -> None:
        """Put the settings of a topic and its channels in force."""
        topic.apply(self.of_topic(topic), now=now)
        for channel in topic.channels.values():
            self.apply_channel(channel, now=now)

    def _apply_matching(self, changed: list[Policy], *, now: int) -> None:
        """Put settings in force where one of the policies holds, or held before; cold topics get them when used."""
        for topic in self._broker.topics_in_use():
            if any(policy.matches_topic(topic.name) for policy in changed):
                self.apply_topic(topic, now=now)
                continue
            for channel in topic.channels.values():
                if any(policy.matches(topic.name, channel.name) for policy in changed):
                    self.apply_channel(channel, now=now)


def _without(values: Mapping[str, Any], setting: str, value: str) -> Mapping[str, Any]:
    """Return values, without a setting if it has that value."""
    if values.get(setting) != value:
        return values
    return {name: each for name, each in values.items() if name != setting}


def _keeping_letters(found: ChannelSettings) -> ChannelSettings:
    """Return the settings of a channel `dead`.

    A dead letter never makes another: where it would become one, as it is old or too much, it is kept instead.
    """
    if found.expired_to_dead:
        found = replace(found, message_ttl=0)
    return replace(found, max_depth=0, max_bytes=0) if found.overflow == "dead" else found


def _flags(options: Options, names: tuple[str, ...], definition: Mapping[str, Any]) -> Layer:
    """Return the flags that were given as a layer of settings."""
    defaults = {field.name: field.default for field in fields(Options)}
    given = {name: getattr(options, name) for name in names if getattr(options, name) != defaults[name]}
    return "flag", {name: definition[name].kind.value(value) for name, value in given.items()}
