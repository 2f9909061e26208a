"""The page of all connected consumers."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from lapwing.admin.pages.elements import Table, panel
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.table_rows import Label, Row, TableColumn
from lapwing.admin.poller import EVERYWHERE
from lapwing.client.cluster import Json, locality

SLOW: Final = "Holds all that it asked for and finishes less than one message a second, or nothing"


@dataclass(slots=True)
class Finishing:
    """The messages per second that each connection finishes, from one view to the next."""

    _before: dict[str, tuple[float, int]] = field(default_factory=dict)
    _rates: dict[str, float] = field(default_factory=dict)

    def rate(self, key: str, finished: int, at: float) -> float | None:
        """Return the messages per second since the last view; None at the first."""
        before = self._before.get(key)
        if before is None:
            self._before[key] = (at, finished)
            return None
        if at - before[0] >= 1.0:
            self._rates[key] = max(0, finished - before[1]) / (at - before[0])
            self._before[key] = (at, finished)
        return self._rates.get(key)


def is_slow(client: Json, rate: float | None) -> bool:
    """Return whether a consumer holds all that it asked for and finishes less than one message per second."""
    full = client["ready_count"] > 0 and client["in_flight_count"] >= client["ready_count"]
    return full and rate is not None and rate < 1.0


class ClientTable:
    """A table of connections: with their channel if `where`, with their nsqd if `node`."""

    def __init__(self, view: PageView, caption: str, *, where: bool = True, node: bool = True) -> None:
        self._view = view
        self._where = where
        self._node = node
        self._finishing = Finishing()
        columns = _columns(where=where, node=node)
        self._table = Table("clients", caption, columns, order="host", empty="No NSQ client is connected.")

    def show(self, channels: Iterable[Json]) -> None:
        """Show the clients of these channels; those of a single one are coloured by their distance from the nsqd."""
        clients = [(client, channel) for channel in channels for client in channel["clients"] or ()]
        rows = [self._row(client, channel["topic_name"], channel["channel_name"]) for client, channel in clients]
        near = {row[0]: locality(client) for row, (client, _) in zip(rows, clients, strict=True)}
        self._table.show(rows, tint=None if self._where else near)

    def _row(self, client: Json, topic: str, channel: str) -> Row:
        links, hostname, ident = self._view.links, client["hostname"], client["client_id"]
        key = f"{client['node']} {client['remote_address']} {topic} {channel}"
        rate = self._finishing.rate(key, client["finish_count"], self._view.cluster_view.at)
        port = client["remote_address"].rpartition(":")[2]
        below = ident if ident not in (hostname, hostname.partition(".")[0]) else ""
        labels = [["slow", "warn", SLOW]] if is_slow(client, rate) else []
        return [
            key,
            [f"{hostname}:{port}", "", below, labels, client["remote_address"]],
            *([[f"{topic}/{channel}", links.topic(topic, channel), "", []]] if self._where else []),
            client["user_agent"],
            client_attributes(client),
            *([[client["node"], links.node(client["node"]), "", []]] if self._node else []),
            client["in_flight_count"],
            client["ready_count"],
            client["finish_count"],
            client["requeue_count"],
            client["message_count"],
            None if rate is None else round(rate, 2),
            client["connected"] // 1_000_000_000,
        ]


def _columns(*, where: bool, node: bool) -> list[TableColumn]:
    return [
        TableColumn("host", "Client host", "link", wide=True),
        *([TableColumn("channel", "Channel", "link")] if where else []),
        TableColumn("agent", "User agent", "text"),
        TableColumn("attributes", "Attributes", "labels"),
        *([TableColumn("node", "NSQd host", "link")] if node else []),
        TableColumn("in_flight", "In flight"),
        TableColumn("ready", "Ready count", title="RDY: how many more it will take"),
        TableColumn("finished", "Finished"),
        TableColumn("requeued", "Requeued"),
        TableColumn("messages", "Messages"),
        TableColumn("rate", "Rate", "rate", "Messages finished a second since the last look"),
        TableColumn("connected", "Connected", "dur"),
    ]


def client_attributes(client: Json) -> list[Label]:
    """Return the labels of a connection: whether it is the active one, sampling, TLS, compression, identity, place."""
    labels: list[Label] = []
    if "active" in client:
        labels.append(
            ["Active", "good", "The one consumer that gets messages"]
            if client["active"]
            else ["Standby", "", "Gets messages when the active consumer leaves, or asks for nothing and holds nothing"]
        )
    if client["sample_rate"]:
        labels.append([f"Sampled {client['sample_rate']}%", "info", "Gets only this share of the messages"])
    if client["tls"]:
        details = (client["tls_version"], client["tls_cipher_suite"], client["tls_negotiated_protocol"])
        labels.append(["TLS", "good", " ".join(text for text in details if text)])
    labels += [[name, "", ""] for name, key in (("Deflate", "deflate"), ("Snappy", "snappy")) if client[key]]
    if client["authed"]:
        identity = client["auth_identity"] or "authenticated"
        labels.append([identity, "info", client["auth_identity_url"] or "Authenticated"])
    labels += [
        [client[key], "", title]
        for key, title in (("topology_region", "Region"), ("topology_zone", "Zone"))
        if client.get(key)
    ]
    near = locality(client)
    if near:
        labels.append([f"{near}Local", "good", f"In the {near} of its nsqd"])
    return labels


def draw(view: PageView) -> None:
    """Draw `/clients`."""
    view.explain(
        "Every NSQ consumer that is connected. The consumers of Redis clients are on the page of their channel."
    )
    with panel():
        table = ClientTable(view, "Connections")
    view.live(lambda: table.show(view.cluster_view.channels()), clients=EVERYWHERE)
