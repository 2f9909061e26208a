"""`Admin` without `await`: each method is that of `Admin`, run in a thread with an event loop."""

import copy
from collections.abc import Iterable
from typing import Self

from lapwing.client.admin import Admin
from lapwing.client.sync import BlockingClient, blocking


class SyncAdmin(BlockingClient):
    """The administration of a cluster, for code that blocks; see `Admin`.

        with SyncAdmin("127.0.0.1:4151") as admin:
            admin.pause("orders", "billing")
    """

    def __init__(
        self, nsqd: str | Iterable[str] = (), *, lookupd: str | Iterable[str] = (), auth_secret: str = ""
    ) -> None:
        admin = Admin(nsqd, lookupd=lookupd, auth_secret=auth_secret)

        async def finish(seconds: float | None) -> None:
            await admin.close()

        super().__init__("lapwing-admin", admin, finish)

    def only(self, node: str) -> Self:
        """Return the administration of one node; see `Admin.only`."""
        limited = copy.copy(self)
        limited._client = self._client.only(node)
        return limited

    stats = blocking(Admin.stats)
    counts = blocking(Admin.counts)
    create = blocking(Admin.create)
    register = blocking(Admin.register)
    create_channel = blocking(Admin.create_channel)
    pause = blocking(Admin.pause)
    unpause = blocking(Admin.unpause)
    empty = blocking(Admin.empty)
    delete = blocking(Admin.delete)
    tombstone = blocking(Admin.tombstone)
    describe_settings = blocking(Admin.describe_settings)
    settings = blocking(Admin.settings)
    change_settings = blocking(Admin.change_settings)
    policies = blocking(Admin.policies)
    set_policy = blocking(Admin.set_policy)
    remove_policy = blocking(Admin.remove_policy)
    schedules = blocking(Admin.schedules)
    schedule = blocking(Admin.schedule)
    put_schedule = blocking(Admin.put_schedule)
    remove_schedule = blocking(Admin.remove_schedule)
    run_schedule = blocking(Admin.run_schedule)
    pause_schedule = blocking(Admin.pause_schedule)
    resume_schedule = blocking(Admin.resume_schedule)
    pending = blocking(Admin.pending)
    claim = blocking(Admin.claim)
    cancel = blocking(Admin.cancel)
    dead_topics = blocking(Admin.dead_topics)
    dead_groups = blocking(Admin.dead_groups)
    dead_letters = blocking(Admin.dead_letters)
    redrive = blocking(Admin.redrive)
    purge = blocking(Admin.purge)
    redrive_status = blocking(Admin.redrive_status)
    cancel_redrive = blocking(Admin.cancel_redrive)
    seek = blocking(Admin.seek)
    drain = blocking(Admin.drain)
    undrain = blocking(Admin.undrain)
    drain_status = blocking(Admin.drain_status)
