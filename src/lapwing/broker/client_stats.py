"""A client of the broker, whatever protocol it speaks, as statistics show it."""

from __future__ import annotations

from typing import Protocol

from lapwing.records import dataclass


@dataclass(slots=True)
class ClientInfo:
    """The facts about a client that its IDENTIFY, AUTH and connection show."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    remote_address: str = ""
    connected: int = 0  # Unix seconds
    deflate: bool = False
    snappy: bool = False
    tls: bool = False
    tls_version: str = ""
    tls_cipher: str = ""
    tls_protocol: str = ""
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    topology_region: str = ""
    topology_zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStats:
    """One client at one moment."""

    about: ClientInfo  # a copy, which stays as it is
    protocol: str = "V2"
    state: int = 0  # as NSQ numbers it: 0 connected, 3 subscribed, 4 closing
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    published: tuple[tuple[str, int], ...] = ()  # messages by topic
    sample_rate: int = 0  # percent; 0 means all
    active: bool | None = None  # whether it is the one that gets messages; None where all do


class Client(Protocol):
    """A session, as the broker sees it."""

    @property
    def has_published(self) -> bool:
        """Whether the client has published anything."""

    def stats(self) -> ClientStats:
        """Return the client as it is now."""

    def drop_topic(self, name: str) -> None:
        """Drop everything that refers to a topic, which is deleted."""
