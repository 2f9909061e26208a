"""The page of all connected consumers."""

from collections.abc import Iterable
from typing import Final

from lapwing.admin.pages.elements import Table, panel
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.table_rows import Label, Row, TableColumn, linked, row_of
from lapwing.admin.poller import EVERYWHERE
from lapwing.client.cluster import Json, locality
from lapwing.client.cluster_view import CountRates

SLOW: Final = "Holds all that it asked for and finishes less than one message a second, or nothing"


def is_slow(client: Json, rate: float | None) -> bool:
    """Return whether a consumer holds all that it asked for and finishes less than one message per second."""
    full = client["ready_count"] > 0 and client["in_flight_count"] >= client["ready_count"]
    return full and rate is not None and rate < 1.0


class ClientTable:
    """A table of connections: with their channel if `where`, with their nsqd if `node`."""

    def __init__(self, view: PageView, caption: str, *, where: bool = True, node: bool = True) -> None:
        self._view = view
        self._where = where
        self._finishing = CountRates()
        columns = [
            TableColumn("host", "Client host", "link", wide=True, cell=_host),
            *([TableColumn("channel", "Channel", "link", cell=self._channel)] if where else []),
            TableColumn("agent", "User agent", "text", cell="user_agent"),
            TableColumn("attributes", "Attributes", "labels", cell=client_attributes),
            *([TableColumn("node", "NSQd host", "link", cell=self._node)] if node else []),
            TableColumn("in_flight", "In flight", cell="in_flight_count"),
            TableColumn("ready", "Ready count", title="RDY: how many more it will take", cell="ready_count"),
            TableColumn("finished", "Finished", cell="finish_count"),
            TableColumn("requeued", "Requeued", cell="requeue_count"),
            TableColumn("messages", "Messages", cell="message_count"),
            TableColumn("rate", "Rate", "rate", "Messages finished a second since the last look"),
            TableColumn("connected", "Connected", "dur", cell=lambda each: each["connected"] // 1_000_000_000),
        ]
        self._columns = columns
        self._table = Table("clients", caption, columns, order="host", empty="No NSQ client is connected.")

    def show(self, channels: Iterable[Json]) -> None:
        """Show the clients of these channels; those of a single one are coloured by their distance from the nsqd."""
        found: dict[str, Json] = {}
        for channel in channels:
            place = channel["topic_name"], channel["channel_name"]
            for client in channel["clients"] or ():
                key = " ".join((client["node"], client["remote_address"], *place))
                rate = self._finishing.rate(key, client["finish_count"], self._view.cluster_view.at)
                found[key] = {**client, "place": place, "rate": None if rate is None else round(rate, 2)}
        rows = [row_of(self._columns, key, client) for key, client in found.items()]
        near = {key: locality(client) for key, client in found.items()}
        self._table.show(rows, tint=None if self._where else near)

    def _channel(self, client: Json) -> Row:
        return linked("/".join(client["place"]), self._view.links.topic(*client["place"]))

    def _node(self, client: Json) -> Row:
        return linked(client["node"], self._view.links.node(client["node"]))


def _host(client: Json) -> Row:
    hostname, ident = client["hostname"], client["client_id"]
    port = client["remote_address"].rpartition(":")[2]
    below = ident if ident not in (hostname, hostname.partition(".")[0]) else ""
    labels = [["slow", "warn", SLOW]] if is_slow(client, client["rate"]) else []
    return [f"{hostname}:{port}", "", below, labels, client["remote_address"]]


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
