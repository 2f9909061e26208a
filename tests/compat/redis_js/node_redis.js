// node-redis as its users run it: a producer, two workers of a group, a claim, a transaction. Prints a report as JSON.
const { createClient } = require(`${process.argv[2]}/node_modules/redis`);
const [host, port, stream] = [process.argv[3], Number(process.argv[4]), process.argv[5]];

async function main() {
  const client = createClient({ socket: { host, port } });
  const worker = client.duplicate();
  await client.connect();
  await worker.connect();
  await client.xGroupCreate(stream, "g", "$", { MKSTREAM: true });
  const waiting = worker.xReadGroup("g", "first", { key: stream, id: ">" }, { COUNT: 1, BLOCK: 5000 });
  const ids = [await client.xAdd(stream, "*", { data: "one" })];
  const woken = await waiting;
  const replies = await client.multi().xAdd(stream, "*", { data: "two" }).xAdd(stream, "*", { name: "Sara" }).xLen(stream).exec();
  ids.push(replies[0], replies[1]);
  const pipelined = await Promise.all(Array.from({ length: 100 }, (_, n) => client.xAdd(stream, "*", { n: String(n) })));
  const rest = await worker.xReadGroup("g", "second", { key: stream, id: ">" }, { COUNT: 2 });
  const acked = await client.xAck(stream, "g", [ids[0], ids[1]]);
  const claimed = await client.xAutoClaim(stream, "g", "third", 0, "0-0");
  const pending = await client.xPending(stream, "g");
  const info = await client.xInfoStream(stream);
  const range = await client.xRange(stream, ids[2], ids[2]);
  await client.xDel(stream, ids[2]);
  const pairs = (message) => Object.entries(message).flat();
  const report = {
    woken: woken[0].messages.map(({ message }) => pairs(message)),
    rest: rest[0].messages.map(({ message }) => pairs(message)), length: replies[2],
    pipelined: pipelined.every(Boolean), acked, claimed: claimed.messages.map(({ id }) => id === ids[2]),
    pending: pending.pending, info: info.length === 103, buffer: pairs(range[0].message), left: await client.xLen(stream),
  };
  console.log(JSON.stringify(report));
  await client.close();
  await worker.close();
}

main().catch((error) => { console.error(error); process.exit(1); });
