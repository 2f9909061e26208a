"""ansq, as its users run it: does the job of `parties.Job` and tells what it saw."""

import asyncio
import sys

import ansq
import reporting


async def main() -> None:
    job = reporting.read_job()
    report = reporting.Report(job)
    address = f"{job['host']}:{job['port']}"

    async def beat(connection: object) -> None:
        report.heartbeat()

    options = ansq.ConnectionOptions(
        features=ansq.ConnectionFeatures(
            heartbeat_interval=job["heartbeat"] * 1000, msg_timeout=job["msg_timeout"] * 1000
        ), on_heartbeat=beat
    )
    writer = await ansq.create_writer([address], connection_options=options)
    topic = job["topic"]
    report.begin()
    publishes = [
        *((writer.pub, topic, body) for body in job["singles"]),
        (writer.mpub, topic, *job["batch"]),
        (writer.pub, topic, report.big),
        (writer.dpub, topic, "later", job["delay"]),
        (writer.pub, topic, "again"),
        (writer.pub, topic, "slow"),
    ]
    for publish, *arguments in [] if job["published"] else publishes:
        answer = await publish(*arguments)
        if not answer.is_ok:
            report.fail(answer)
        report.answers += 1
    place = {"lookupd_http_addresses": [job["lookupd"]]} if job["lookupd"] else {"nsqd_tcp_addresses": [address]}
    reader = await ansq.create_reader(topic, "ansq", connection_options=options, **place)
    async for message in reader.messages():
        report.delivered(message.body, message.attempts)
        if message.body == b"again" and message.attempts == 1:
            await message.req(job["requeue"])
            continue
        if message.body == b"slow":
            for _ in range(job["touches"]):
                await message.touch()
                await asyncio.sleep(job["touch_every"] / 1000)
        await message.fin()
        if report.finished(message.body):
            break
    await asyncio.sleep(0.05)
    report.send()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await reader.close()
    await writer.close()


asyncio.run(main())
