"""Jobs that run later, also after a restart of the broker: python delayed_jobs.py"""

import asyncio
import time
from dataclasses import dataclass

from lapwing import App, Hold

app = App()
opens = time.time() + 0.5  # of the mail server
done = asyncio.Event()


@dataclass
class Job:
    name: str
    due: float


@app.consumer("jobs", "worker", concurrency=10)
async def work(job: Job) -> None:
    if job.name.startswith("mail") and time.time() < opens:
        raise Hold(0.2)  # not now; no failure is counted
    print(f"{job.name}, {max(0, round((time.time() - job.due) * 1000))} ms late", flush=True)
    done.set() if job.name == "report" else None


async def main() -> None:
    async with app:
        for name, seconds in (("report", 1.0), ("mail ann", 0.2), ("clean up", 0.6)):
            await app.publish("jobs", Job(name, time.time() + seconds), defer=seconds)  # up to --max-defer
        await done.wait()


if __name__ == "__main__":
    asyncio.run(main())
