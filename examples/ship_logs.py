"""Ship lines of a log file to a topic, archive them, query them: python examples/ship_logs.py access.log

Lines become JSON messages; `lapwing pipeline run archive --once` writes what is new, and SQL runs over the files. The
place in the file is kept beside it, so a second run ships only new lines.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

from lapwing.client.sync import SyncProducer

REQUEST = r'"(?P<method>\S+) (?P<path>\S+)[^"]*"'
LINE = re.compile(rf"(?P<host>\S+) \S+ \S+ \[(?P<at>[^\]]+)\] {REQUEST} (?P<status>\d+) (?P<bytes>\d+)")
BATCH = 500
QUERY = "select status, count(*) as requests, sum(bytes) as bytes from access group by status order by status"


def parsed(line: str) -> bytes:
    found = LINE.match(line)
    if found is None:
        return json.dumps({"line": line}).encode()
    return json.dumps({**found.groupdict(), "status": int(found["status"]), "bytes": int(found["bytes"])}).encode()


def ship(path: Path, nsqd: str) -> int:
    """Publish the whole lines that were added since the last call."""
    mark = path.with_suffix(path.suffix + ".shipped")
    start = int(mark.read_text()) if mark.exists() else 0
    if start > path.stat().st_size:  # a new file has its name
        start = 0
    shipped = 0
    with SyncProducer(nsqd) as producer, path.open("rb") as file:
        while True:
            file.seek(start)  # behind the last whole line, wherever the end was read to
            lines = [line for line in file.readlines(BATCH * 200) if line.endswith(b"\n")]
            if not lines:
                return shipped
            producer.publish_many("access", [parsed(line.decode("utf-8", "replace")) for line in lines])
            start += sum(map(len, lines))
            new = mark.with_suffix(".new")
            new.write_text(str(start))  # after nsqd has confirmed: a crash ships lines twice, never not at all
            new.replace(mark)  # whole, whenever we are killed
            shipped += len(lines)


def main(log: str, nsqd: str = "127.0.0.1:4150", nsqd_http: str = "127.0.0.1:4151", out: str = "lapwing-data") -> None:
    print(ship(Path(log), nsqd), "lines shipped", flush=True)
    lapwing = str(Path(sys.executable).parent / "lapwing")
    archive = [lapwing, "pipeline", "run", "archive", "--once", "--nsqd", nsqd_http, "--set", "topics=access"]
    subprocess.run([*archive, "--out", f"{out}/archive", "--data", f"{out}/pipelines"], check=True)
    subprocess.run([lapwing, "sql", "--archive", f"{out}/archive", QUERY], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
