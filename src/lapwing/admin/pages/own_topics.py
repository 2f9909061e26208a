"""The switch that lists lapwing's own topics among those of users."""

from lapwing import names
from lapwing.admin.pages.elements import button, icon, set_attributes, set_text
from lapwing.admin.pages.frame import PageView
from lapwing.client.cluster import Json


class OwnTopics:
    """A switch beside the title, shown if there are such topics. Lists leave them out until it is pressed.

    `?own=true` in the address is the same as pressing it.
    """

    def __init__(self, view: PageView) -> None:
        self._view = view
        self.shown = view.asked("own") == "true"
        with view.buttons:
            self._button = button("lapwing's own", self._press, title="Topics that lapwing keeps for itself")
            with self._button:
                self._sign = icon("")
                self._sign.move(target_index=0)
        view.live(self._refresh)

    def topics(self) -> dict[str, Json]:
        """Return the topics to list."""
        cluster_view = self._view.cluster_view
        return cluster_view.topics if self.shown else cluster_view.users_topics()

    def is_shown(self, topic: str) -> bool:
        """Return whether to list a topic of that name."""
        return self.shown or not names.own(topic)

    def _press(self) -> None:
        self.shown = not self.shown
        self._view.refresh()

    def _refresh(self) -> None:
        cluster_view = self._view.cluster_view
        self._button.set_visibility(self.shown or len(cluster_view.users_topics()) < len(cluster_view.topics))
        set_attributes(self._button, aria_pressed="true" if self.shown else "false")
        set_attributes(self._button, data_address="own=" if self.shown else "own=true")  # the address after a click
        set_text(self._sign, "check_box" if self.shown else "check_box_outline_blank")
