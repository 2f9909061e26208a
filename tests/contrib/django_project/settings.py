"""A Django project whose tasks run over lapwing; the environment names the database and nsqd."""

import json
import os

SECRET_KEY = "for tests"
USE_TZ = True
INSTALLED_APPS = ["lapwing.contrib.django", "lapwing.outbox.django"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["TASKS_DATABASE"],
        "OPTIONS": {"timeout": 60},  # for slow machines; the rest as `startproject` has it
    }
}
OPTIONS = {
    "nsqd": os.environ["TASKS_NSQD"],
    "nsqd_http": os.environ["TASKS_NSQD_HTTP"],
    "prefix": os.environ.get("TASKS_PREFIX", "tasks."),
    "retry_first": "10ms",
}
BACKEND = {"BACKEND": "lapwing.contrib.django.LapwingBackend", "QUEUES": ["default", "mail"]}
TASKS = {
    "default": {**BACKEND, "OPTIONS": OPTIONS},
    "outbox": {**BACKEND, "OPTIONS": {**OPTIONS, "outbox": True}},
    "again": {**BACKEND, "OPTIONS": {**OPTIONS, "max_attempts": 3, "prefix": OPTIONS["prefix"] + "again."}},
    **json.loads(os.environ.get("TASKS_MORE", "{}")),
}
LOGGING = {"version": 1, "handlers": {"stderr": {"class": "logging.StreamHandler"}}, "root": {"handlers": ["stderr"]}}
