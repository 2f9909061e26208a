// nsqjs, as its users run it: does the job of `parties.Job` and tells what it saw.
const fs = require('fs')
const { createRequire } = require('module')
const { promisify } = require('util')

const job = JSON.parse(process.argv[2])
const { Reader, Writer } = createRequire(job.modules + '/')('nsqjs')

const BIG = Buffer.from(Array.from({ length: 20000 }, (_, number) => `${number},`).join('')).subarray(0, job.big)
const name = (body) => (body.equals(BIG) ? 'BIG' : body.toString())
const waiting = new Set([...job.singles, ...job.batch, 'BIG', 'later', 'again', 'slow'])
const deliveries = []
let began = 0
let answers = 0

const settings = { heartbeatInterval: job.heartbeat }
if (job.tls) Object.assign(settings, { tls: true, tlsVerification: true, ca: fs.readFileSync(job.ca) })
if (job.compression) settings[job.compression] = true
if (job.secret) settings.authSecret = job.secret

const fail = (error) => {
  console.log(JSON.stringify({ error: String(error && error.message ? error.message : error) }))
  process.exit(1)
}

const writer = new Writer(job.host, job.port, settings)

function consume() {
  const address = `${job.host}:${job.port}`
  const place = job.lookupd ? { lookupdHTTPAddresses: [job.lookupd] } : { nsqdTCPAddresses: [address] }
  const reader = new Reader(job.topic, 'nsqjs', { maxInFlight: 20, lookupdPollInterval: 1, ...settings, ...place })
  const finish = (message) => {
    message.finish()
    waiting.delete(name(message.body))
    if (waiting.size) return
    setTimeout(() => console.log(JSON.stringify({ answers, heartbeats: null, deliveries })), 50)
    process.stdin.on('end', () => {
      reader.close()
      writer.close()
      setTimeout(() => process.exit(0), 100)
    })
    process.stdin.resume()
  }
  const keep = (message, left) => {
    if (!left) return finish(message)
    message.touch()
    setTimeout(() => keep(message, left - 1), job.touch_every)
  }
  reader.on(Reader.ERROR, fail)
  reader.on(Reader.MESSAGE, (message) => {
    deliveries.push([name(message.body), message.attempts, (Date.now() - began) / 1000])
    if (name(message.body) === 'again' && message.attempts === 1) message.requeue(job.requeue, false)
    else if (name(message.body) === 'slow' && job.touches) keep(message, job.touches)
    else finish(message)
  })
  reader.connect()
}

writer.on(Writer.ERROR, fail)
writer.on(Writer.READY, async () => {
  const publish = promisify(writer.publish.bind(writer))
  const defer = promisify(writer.deferPublish.bind(writer))
  began = Date.now()
  if (job.published) return consume()
  try {
    for (const body of job.singles) await publish(job.topic, body)
    await publish(job.topic, job.batch)
    await publish(job.topic, BIG)
    await defer(job.topic, ['later'], job.delay) // it takes a list of one, whatever its documentation says
    await publish(job.topic, 'again')
    await publish(job.topic, 'slow')
  } catch (error) {
    fail(error)
  }
  answers = 5 + job.singles.length
  consume()
})
writer.connect()
