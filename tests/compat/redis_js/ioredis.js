// ioredis as its users run it: a producer, two workers of a group, a claim, a transaction. Prints a report as JSON.
const Redis = require(`${process.argv[2]}/node_modules/ioredis`);
const [host, port, stream] = [process.argv[3], Number(process.argv[4]), process.argv[5]];

async function main() {
  const client = new Redis(port, host);
  const worker = client.duplicate();
  await client.xgroup("CREATE", stream, "g", "$", "MKSTREAM");
  const waiting = worker.xreadgroup("GROUP", "g", "first", "COUNT", 1, "BLOCK", 5000, "STREAMS", stream, ">");
  const ids = [await client.xadd(stream, "*", "data", "one")];
  const [[, woken]] = await waiting;
  const replies = await client.multi().xadd(stream, "*", "data", "two").xadd(stream, "*", "name", "Sara").xlen(stream).exec();
  ids.push(replies[0][1], replies[1][1]);
  const pipelined = await client.pipeline(Array.from({ length: 100 }, (_, n) => ["xadd", stream, "*", "n", String(n)])).exec();
  const [[, rest]] = await worker.xreadgroup("GROUP", "g", "second", "COUNT", 2, "STREAMS", stream, ">");
  const acked = await client.xack(stream, "g", ids[0], ids[1]);
  const [, claimed] = await client.xautoclaim(stream, "g", "third", 0, "0-0");
  const pending = await client.xpending(stream, "g");
  const info = await client.xinfo("STREAM", stream);
  const buffer = await client.xrangeBuffer(stream, ids[2], ids[2]);
  await client.xdel(stream, ids[2]);
  const report = {
    woken: woken.map(([id, pairs]) => pairs), rest: rest.map(([id, pairs]) => pairs), length: replies[2][1],
    pipelined: pipelined.every(([error, id]) => !error && id), acked, claimed: claimed.map(([id]) => id === ids[2]),
    pending: pending[0], info: info.indexOf("length") >= 0, buffer: buffer[0][1].map(String), left: await client.xlen(stream),
  };
  console.log(JSON.stringify(report));
  await client.quit();
  await worker.quit();
}

main().catch((error) => { console.error(error); process.exit(1); });
