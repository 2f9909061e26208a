"""Celery on lapwing beside Redis and RabbitMQ: tasks a second through one worker, and the latency of a single task.

    python benchmarks/celery.py [--tasks 2000] [--rounds 3] [--brokers 'lapwing;redis;rabbitmq']

Each broker keeps its messages as it does by default, on loopback, with the same application, worker (prefork, two
processes) and publisher. The brokers take turns; the best round counts. A task reports by a datagram. A
broker that is not installed is left out.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

APPLICATION = '''
import json, os, socket
from celery import Celery
import lapwing.contrib.celery
app = Celery("bench", broker=os.environ["BENCH_BROKER"])
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
app.conf.broker_transport_options = json.loads(os.environ["BENCH_OPTIONS"])
there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
@app.task
def tick(number):
    there.sendto(b"%d" % number, ("127.0.0.1", int(os.environ["BENCH_PORT"])))
'''


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextlib.contextmanager
def program(command: list[str], port: int, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    env, quiet = {**os.environ, **(env or {})}, subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env=env)
    try:
        deadline = time.monotonic() + 120
        while not answers(port):
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"{command[0]} did not start")
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def lapwing(folder: Path, confirm: bool = True) -> Iterator[tuple[dict[str, str], int]]:
    from daemons import nsqd

    with nsqd(f"--data-path={folder}") as daemon:
        options = json.dumps({"nsqd_http": daemon.http, "confirm_publish": confirm})
        yield {"BENCH_BROKER": f"lapwing://{daemon.tcp}", "BENCH_OPTIONS": options}, daemon.pid


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[tuple[dict[str, str], int]]:
    port = free_port()
    with program(["redis-server", "--port", str(port), "--dir", str(folder)], port) as process:
        yield {"BENCH_BROKER": f"redis://127.0.0.1:{port}/0", "BENCH_OPTIONS": "{}"}, process.pid


@contextlib.contextmanager
def rabbitmq(folder: Path, confirm: bool = True) -> Iterator[tuple[dict[str, str], int]]:
    port = free_port()
    env = {
        "RABBITMQ_NODE_PORT": str(port), "RABBITMQ_NODENAME": f"bench{port}@localhost", "HOME": str(folder),
        "RABBITMQ_DIST_PORT": str(free_port()), "RABBITMQ_MNESIA_BASE": str(folder), "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
    }  # fmt: skip
    with program([RABBITMQ], port, env) as process:
        time.sleep(3)  # it listens before it serves
        options = json.dumps({"confirm_publish": confirm})
        yield {"BENCH_BROKER": f"amqp://guest:guest@127.0.0.1:{port}//", "BENCH_OPTIONS": options}, process.pid


Running = Callable[[Path], contextlib.AbstractContextManager[tuple[dict[str, str], int]]]
RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"
BROKERS: dict[str, tuple[Running, str]] = {  # and the program that has to be there
    "lapwing": (lapwing, sys.executable),
    "redis": (redis, "redis-server"),
    "rabbitmq": (rabbitmq, RABBITMQ),
    "lapwing, unconfirmed": (partial(lapwing, confirm=False), sys.executable),
    "rabbitmq, unconfirmed": (partial(rabbitmq, confirm=False), RABBITMQ),
}


def cpu(pid: int) -> float:
    """Return the CPU seconds of a process and its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + sum(cpu(int(child)) for child in children)


def measure(name: str, tasks: int) -> dict[str, float]:
    """Run one round in a process of its own, so that no Celery of another broker is in it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as path, BROKERS[name][0](Path(path)) as (known, pid):
        (Path(path) / "bench_tasks.py").write_text(APPLICATION)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
            here.bind(("127.0.0.1", 0))
            here.settimeout(120)
            here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            env = {**os.environ, **known, "BENCH_PORT": str(here.getsockname()[1])}
            command = [sys.executable, "-m", "celery", "-A", "bench_tasks", "worker", "-c", "2", "-l", "ERROR"]
            worker = subprocess.Popen(command, cwd=path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                      start_new_session=True)  # fmt: skip
            publisher = subprocess.Popen([sys.executable, "-u", "-c", PUBLISHER], cwd=path, env=env, text=True,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
            assert publisher.stdin is not None
            assert publisher.stdout is not None
            try:

                def publish(count: int) -> float:
                    print(count, file=publisher.stdin, flush=True)
                    return float(publisher.stdout.readline())

                publish(20)
                for _ in range(20):
                    here.recv(64)
                latencies = []
                for _ in range(100):
                    began = time.perf_counter()
                    print(1, file=publisher.stdin, flush=True)
                    here.recv(64)
                    latencies.append(time.perf_counter() - began)
                    publisher.stdout.readline()
                pids = {"broker": pid, "worker": worker.pid, "publisher": publisher.pid}
                before = {who: cpu(each) for who, each in pids.items()}
                os.killpg(worker.pid, signal.SIGSTOP)  # publish alone, then run alone, then both beside each other
                published = publish(tasks)
                began = time.perf_counter()
                os.killpg(worker.pid, signal.SIGCONT)
                for _ in range(tasks):
                    here.recv(64)
                ran, began = time.perf_counter() - began, time.perf_counter()
                publish(tasks)
                for _ in range(tasks):
                    here.recv(64)
                both = time.perf_counter() - began
                return {
                    "publish": tasks / published, "run": tasks / ran, "both": tasks / both,
                    "ms": statistics.median(latencies) * 1000,
                    **{who: (cpu(each) - before[who]) / tasks / 2 * 1e6 for who, each in pids.items()},
                }  # fmt: skip
            finally:
                publisher.kill()
                os.killpg(worker.pid, signal.SIGCONT)
                worker.terminate()
                worker.wait(60)


PUBLISHER = """
import sys, time
from bench_tasks import tick
for line in sys.stdin:
    began = time.perf_counter()
    for number in range(int(line)):
        tick.delay(number)
    print(time.perf_counter() - began)
"""


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--tasks", type=int, default=2000)
    flags.add_argument("--rounds", type=int, default=3)
    flags.add_argument("--brokers", default=";".join(BROKERS))
    given = flags.parse_args()
    chosen = [name for name in given.brokers.split(";") if shutil.which(BROKERS[name][1])]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    for _ in range(given.rounds):
        for name in chosen:
            found[name].append(measure(name, given.tasks))
    print(f"{given.tasks} tasks, worker with two processes, best of {given.rounds}")
    print(f"{'':22}{'published/s':>12}{'run/s':>7}{'both/s':>8}{'one task, ms':>14}"
          "   us of CPU a task: broker, worker, publisher")  # fmt: skip
    for name, rounds in found.items():
        best = {key: max(r[key] for r in rounds) for key in ("publish", "run", "both")}
        least = {key: min(r[key] for r in rounds) for key in ("ms", "broker", "worker", "publisher")}
        used = "".join(f"{least[who]:8.0f}" for who in ("broker", "worker", "publisher"))
        rates = f"{best['publish']:12.0f}{best['run']:7.0f}{best['both']:8.0f}"
        print(f"{name:22}{rates}{least['ms']:14.2f}   {used}")


if __name__ == "__main__":
    main()
