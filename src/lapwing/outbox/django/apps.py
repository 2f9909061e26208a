"""The Django app of the outbox."""

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """The app, under a name that no other has."""

    name = "lapwing.outbox.django"
    label = "lapwing_outbox"
    default_auto_field = "django.db.models.BigAutoField"
