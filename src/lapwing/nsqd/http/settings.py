"""`/settings`, `/topic/settings`, `/channel/settings` and `/policies`: what holds, and how it is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lapwing.broker.channel.channel import Channel
from lapwing.broker.settings import definitions as settings
from lapwing.broker.settings import policies
from lapwing.broker.settings.definitions import Resolved
from lapwing.broker.topic.topic import Topic
from lapwing.net.server.answers import Answer, Refused, nothing, value
from lapwing.net.server.requests import Request
from lapwing.net.server.routes import Route
from lapwing.nsqd.http.document import parse_json
from lapwing.nsqd.http.permissions import CHANNEL_ADMIN, CREATE_TOPIC, KNOWN, TOPIC_ADMIN, require
from lapwing.nsqd.http.publishing import named
from lapwing.nsqd.turn import Turn

_LARGEST_BODY: Final = 64 * 1024


class SettingsApi:
    def __init__(self, turn: Turn) -> None:
        self._broker, self._now, self._schedule_flush = turn.broker, turn.clock.now, turn.schedule_flush
        self._settings = turn.broker.settings

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/settings", self.describe, access=KNOWN),
            Route("GET", "/topic/settings", self.show_topic, access=TOPIC_ADMIN),
            Route("PATCH", "/topic/settings", self.change_topic, max_body=_LARGEST_BODY, access=TOPIC_ADMIN),
            Route("DELETE", "/topic/settings", self.clear_topic, access=TOPIC_ADMIN),
            Route("GET", "/channel/settings", self.show_channel, access=CHANNEL_ADMIN),
            Route("PATCH", "/channel/settings", self.change_channel, max_body=_LARGEST_BODY, access=CHANNEL_ADMIN),
            Route("DELETE", "/channel/settings", self.clear_channel, access=CHANNEL_ADMIN),
            Route("GET", "/policies", self.list_policies),
            Route("GET", "/policies/<name>", self.show_policy),
            Route("PUT", "/policies/<name>", self.put_policy, max_body=_LARGEST_BODY),
            Route("DELETE", "/policies/<name>", self.remove_policy),
        ]

    def describe(self, request: Request) -> Answer:
        """Answer with every setting there is: its name, kind, default and meaning."""
        return value(settings.describe())

    # --- topics ------------------------------------------------------------------------------------------------

    def show_topic(self, request: Request) -> Answer:
        """Answer with a topic's settings, each with its value and where that comes from."""
        return self._topic_answer(self._topic(request))

    def change_topic(self, request: Request) -> Answer:
        """Change some of a topic's own settings; null removes one."""
        return self._change_topic(self._topic(request), _document(request))

    def clear_topic(self, request: Request) -> Answer:
        """Remove a topic's own settings: those that are named, or all."""
        return self._change_topic(self._topic(request), _removals(request, settings.TOPIC_LEVEL))

    def _change_topic(self, topic: Topic, changes: Any) -> Answer:
        self._settings.change_topic(topic, changes, now=self._now())
        self._schedule_flush()
        return self._topic_answer(topic)

    def _topic_answer(self, topic: Topic) -> Answer:
        return value({"topic": topic.name, "settings": _shown(self._settings.explain_topic(topic))})

    # --- channels ----------------------------------------------------------------------------------------------

    def show_channel(self, request: Request) -> Answer:
        """Answer with a channel's settings, each with its value and where that comes from."""
        return self._channel_answer(self._channel(request))

    def change_channel(self, request: Request) -> Answer:
        """Change some of a channel's own settings; null removes one."""
        channel, changes = self._channel(request), _document(request)
        if isinstance(changes, dict) and isinstance(target := changes.get("dead_topic"), str) and target:
            require(request, CREATE_TOPIC, target)  # messages are published there
        return self._change_channel(channel, changes)

    def clear_channel(self, request: Request) -> Answer:
        """Remove a channel's own settings: those that are named, or all."""
        return self._change_channel(self._channel(request), _removals(request, settings.CHANNEL))

    def _change_channel(self, channel: Channel, changes: Any) -> Answer:
        self._settings.change_channel(channel, changes, now=self._now())
        self._schedule_flush()
        return self._channel_answer(channel)

    def _channel_answer(self, channel: Channel) -> Answer:
        found = _shown(self._settings.explain_channel(channel))
        return value({"topic": channel.topic.name, "channel": channel.name, "settings": found})

    # --- policies ----------------------------------------------------------------------------------------------

    def list_policies(self, request: Request) -> Answer:
        """Answer with all policies, the one that wins first."""
        return value({"policies": [self._policy(policy) for policy in self._settings.policies.all()]})

    def show_policy(self, request: Request) -> Answer:
        policy = self._settings.policies.get(request.parameter)
        if policy is None:
            raise Refused(404, "POLICY_NOT_FOUND")
        return value(self._policy(policy))

    def put_policy(self, request: Request) -> Answer:
        """Add a policy, or replace the one of its name."""
        policy = policies.parse(request.parameter, _document(request), now=self._now() + self._broker.skew)
        self._settings.put_policy(policy, now=self._now())
        self._schedule_flush()
        return value(self._policy(policy))

    def remove_policy(self, request: Request) -> Answer:
        if not self._settings.remove_policy(request.parameter, now=self._now()):
            raise Refused(404, "POLICY_NOT_FOUND")
        self._schedule_flush()
        return nothing()

    def _policy(self, policy: policies.Policy) -> dict[str, Any]:
        """Return a policy with how much it matches now."""
        topics = self._broker.topics.values()
        return {
            "name": policy.name,
            **policy.document(),
            "matching_topics": sum(policy.matches_topic(topic.name) for topic in topics),
            "matching_channels": sum(
                policy.matches(topic.name, channel) for topic in topics for channel in topic.channels
            ),
        }

    # --- what they share ---------------------------------------------------------------------------------------

    def _topic(self, request: Request) -> Topic:
        return self._broker.existing(named(request.head, "topic", "INVALID_ARG_TOPIC"))

    def _channel(self, request: Request) -> Channel:
        topic = self._topic(request)
        name = named(request.head, "channel", "INVALID_ARG_CHANNEL")
        return self._broker.existing_channel(topic.name, name)


def _document(request: Request) -> Any:
    return parse_json(request.body, 'a JSON object expected in the body, such as {"max_attempts": 5}')


def _removals(request: Request, definition: Mapping[str, object]) -> dict[str, None]:
    return dict.fromkeys(request.query.all("setting") or definition)


def _shown(found: Mapping[str, Resolved]) -> dict[str, dict[str, Any]]:
    return {name: {"value": each.value, "from": each.source} for name, each in found.items()}
