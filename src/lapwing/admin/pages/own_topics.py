"""Whether lapwing's own topics are listed among the users'."""

from lapwing.admin.pages.frame import View
from lapwing.admin.pages.parts import button, icon, put, say
from lapwing.client.cluster import Json


class OwnTopics:
    """A switch beside the title, there when such topics are: lists leave them out until it is pressed.

    `?own=true` in the address is the same as pressing it.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self.shown = view.asked("own") == "true"
        with view.buttons:
            self._button = button("lapwing's own", self._press, title="Topics that lapwing keeps for itself")
            with self._button:
                self._sign = icon("")
                self._sign.move(target_index=0)
        view.live(self._refresh)

    def topics(self) -> dict[str, Json]:
        """The topics to list."""
        picture = self._view.picture
        return picture.topics if self.shown else picture.users_topics()

    def _press(self) -> None:
        self.shown = not self.shown
        self._view.refresh()

    def _refresh(self) -> None:
        picture = self._view.picture
        self._button.set_visibility(self.shown or len(picture.users_topics()) < len(picture.topics))
        put(self._button, aria_pressed="true" if self.shown else "false")
        put(self._button, data_address="own=" if self.shown else "own=true")  # where a click leads
        say(self._sign, "check_box" if self.shown else "check_box_outline_blank")
