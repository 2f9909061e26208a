"""The Django app of the tasks."""

from django.apps import AppConfig


class TasksConfig(AppConfig):
    """The app, under a name that no other has."""

    name = "lapwing.contrib.django"
    label = "lapwing_tasks"
    verbose_name = "Lapwing tasks"
