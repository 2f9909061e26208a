"""`manage.py lapwing_worker`: run tasks, and publish what waits in the outbox."""

import contextlib
import signal
import subprocess
import threading
import time
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils.autoreload import get_child_arguments, run_with_reloader

from lapwing.contrib.django.backend import LapwingBackend

try:
    from django.tasks import task_backends
except ImportError:
    from django_tasks import task_backends


class Command(BaseCommand):
    """Runs the tasks of a backend until SIGTERM or Ctrl-C; tasks that have begun finish first."""

    help = "Run the tasks that lapwing.contrib.django.LapwingBackend has enqueued."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the flags."""
        parser.add_argument("--backend", default="default", help="run the tasks of this backend of TASKS (default)")
        parser.add_argument("--queue", action="append", help="run the tasks of this queue (all of the backend); repeat")
        parser.add_argument("--concurrency", type=int, default=1, help="run this many tasks at a time, in threads (1)")
        parser.add_argument("--processes", type=int, default=1, help="start this many such workers (1)")
        parser.add_argument("--no-relay", action="store_true", help="do not publish what waits in the outbox")
        parser.add_argument("--reload", action="store_true", default=settings.DEBUG, help="restart when code changes")
        parser.add_argument("--no-reload", action="store_false", dest="reload", help="do not, with DEBUG")

    def handle(self, **options: Any) -> None:
        """Run the command."""
        backend = task_backends[options["backend"]]
        if not isinstance(backend, LapwingBackend):
            raise CommandError(f"the backend {options['backend']!r} is {type(backend).__name__}, not lapwing's")
        queues = options["queue"] or sorted(backend.queues)
        if not queues:
            raise CommandError("the backend has no QUEUES: name some with --queue")
        if options["processes"] > 1:
            _supervise(options["processes"])
        elif options["reload"]:
            run_with_reloader(self._work, backend, queues, options)
        else:
            self._work(backend, queues, options)

    def _work(self, backend: LapwingBackend, queues: list[str], options: dict[str, Any]) -> None:
        from lapwing.contrib.django.worker import Worker

        with contextlib.ExitStack() as stack:
            if backend.outbox and not options["no_relay"]:
                from lapwing.outbox.django.relay import Relay

                relay = stack.enter_context(Relay(backend.nsqd, using=backend.database))
                thread = threading.Thread(target=relay.run, name="lapwing-outbox", daemon=True)
                thread.start()
                stack.callback(thread.join)
                stack.callback(relay.stop)
            Worker(backend, queues, concurrency=options["concurrency"]).run()


def _supervise(processes: int) -> None:
    """Run this command in several processes, and replace those that end, until a signal comes."""
    command = [*get_child_arguments(), "--processes=1", "--no-reload"]
    running: list[subprocess.Popen[bytes]] = []
    stopping = threading.Event()

    def stop(number: int, frame: object) -> None:
        stopping.set()
        if number == signal.SIGTERM:  # Ctrl-C goes to all processes of a terminal
            for process in running:
                process.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    while not stopping.is_set() or running:
        running[:] = [process for process in running if process.poll() is None]
        if not stopping.is_set() and len(running) < processes:
            running.append(subprocess.Popen(command))
        time.sleep(0.1)
