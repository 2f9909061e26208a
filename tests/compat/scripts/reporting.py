"""What the scripts share: the job they are given, and the report they give back."""

import json
import sys
import time


def read_job() -> dict[str, object]:
    """The job, from the command line."""
    return json.loads(sys.argv[1])


class Report:
    """What a client saw; one line of JSON on stdout when all is finished."""

    def __init__(self, job: dict[str, object]) -> None:
        self.answers = 0
        self.heartbeats = 0
        self.big = b"".join(b"%d," % number for number in range(20_000))[: job["big"]]
        self._began = time.monotonic()
        self._deliveries: list[tuple[str, int, float]] = []
        self._waiting = {*job["singles"], *job["batch"], "BIG", "later", "again", "slow"}

    def begin(self) -> None:
        """Publishing begins."""
        self._began = time.monotonic()

    def heartbeat(self) -> None:
        self.heartbeats += 1

    def delivered(self, body: bytes, attempts: int) -> None:
        """A message came."""
        self._deliveries.append((self._name(body), attempts, time.monotonic() - self._began))

    def finished(self, body: bytes) -> bool:
        """A message was finished; whether it was the last."""
        self._waiting.discard(self._name(body))
        return not self._waiting

    def send(self) -> None:
        print(json.dumps({"answers": self.answers, "heartbeats": self.heartbeats, "deliveries": self._deliveries}))
        sys.stdout.flush()

    def fail(self, error: object) -> None:
        """Tell what went wrong, and end."""
        print(json.dumps({"error": str(error)}), flush=True)
        sys.exit(1)

    def _name(self, body: bytes) -> str:
        return "BIG" if body == self.big else body.decode()
