"""Django's tasks over lapwing: Django 6's `django.tasks`, or the package django-tasks with Django 5.

    INSTALLED_APPS = [..., "lapwing.contrib.django"]           # then migrate
    TASKS = {"default": {"BACKEND": "lapwing.contrib.django.LapwingBackend", "OPTIONS": {"nsqd": "127.0.0.1:4150"}}}

`manage.py lapwing_worker` runs the tasks. A queue is the topic `tasks.<queue>`, with `.high` or `.low` behind it for
priorities above and below 0; the state and the result of a task are a row in your database.
"""

from lapwing.contrib.django.backend import LapwingBackend

__all__ = ["LapwingBackend"]
