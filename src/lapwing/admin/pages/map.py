"""The map: producers, topics, channels and readers as one live picture, of the cluster or of one topic."""

from nicegui.element import Element

from lapwing.admin.map_graph import MOST_TOPICS, draw_map, published_by_host
from lapwing.admin.pages.elements import Field, element, link_button, notice, set_attributes, set_text, show_notice
from lapwing.admin.pages.frame import PageView
from lapwing.admin.poller import EVERYWHERE
from lapwing.admin.static import PACKAGED
from lapwing.client.cluster_view import CountRates


class MapPicture(Element, component=PACKAGED / "lw_map.js"):
    """The picture of a `Map`."""


def draw(view: PageView) -> None:
    """Draw `/map`."""
    topic = view.asked("topic")
    view.explain(
        "Messages go from left to right. A thicker line carries more; the number on it is messages a second. "
        "Point at a box to see its lines."
    )
    with view.buttons:
        names = sorted(view.cluster_view.users_topics())
        options = [("", "All topics"), *((name, name) for name in names)]
        Field("Topic", kind="select", value=topic, options=options,
              on_change=lambda name: view.go(view.links.page("/map", topic=name)))  # fmt: skip
        if topic:
            link_button("Figures", view.links.topic(topic), sign="topic")
    absent = notice("")
    picture = MapPicture()
    more = element("p", "", "lw-faint")
    counts = CountRates()

    def refresh() -> None:
        poller, cluster_view = view.admin.poller, view.cluster_view
        published = published_by_host(poller.producers, counts, cluster_view.at)
        made = draw_map(
            cluster_view, poller.history, published, poller.dead, poller.alarms, topic=topic, links=view.links
        )
        nothing = f"No nsqd has the topic {topic}." if topic else "There is no topic yet."
        show_notice(absent, "" if made.nodes else nothing)
        set_attributes(picture, graph=made.to_json())
        picture.set_visibility(bool(made.nodes))
        more.set_visibility(bool(made.left_out))
        set_text(more, f"These are the {MOST_TOPICS} busiest topics; {made.left_out} more can be chosen above.")

    view.live(refresh, clients=EVERYWHERE, dead=True)
