// A payment service on Express, with its idempotency written by hand: records are lines of a journal, and a claim is in the
// memory of the process, because there is one process. Usage: node express.mjs PORT DIRECTORY [FAULT]
//
// Faults: "records in memory" writes no journal; "no user" has one key space for all users; "no keys" ignores keys, for a
// proxy in front of the service.
import crypto from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'
import express from 'express'

const [port, directory, fault] = process.argv.slice(2)
const journal = path.join(directory, 'journal')
const charges = path.join(directory, 'charges')

const readLines = (file) => (fs.existsSync(file) ? fs.readFileSync(file, 'utf8').split('\n').filter(Boolean) : [])
const records = new Map(readLines(journal).map((line) => JSON.parse(line)).map((record) => [record.name, record]))
const running = new Map() // fingerprints by name

// chargeOnce acts once for each ID, as a provider that takes keys does.
function chargeOnce(id) {
  if (!readLines(charges).includes(id)) fs.appendFileSync(charges, id + '\n')
}

function keepRecord(record) {
  records.set(record.name, record)
  if (fault !== 'records in memory') fs.appendFileSync(journal, JSON.stringify(record) + '\n')
}

const digest = (...parts) => crypto.createHash('sha256').update(JSON.stringify(parts)).digest('hex')

function sendAnswer(response, answer) {
  response.status(answer.status).set(answer.header).send(answer.body)
}

// once answers a request with a known key from its record, and lets all other requests with a key run one at a time.
function once(request, response, next) {
  if (fault === 'no keys') {
    response.locals = { id: crypto.randomUUID(), finish: (answer) => sendAnswer(response, answer) }
    return next()
  }
  const key = request.get('Idempotency-Key')
  if (key === undefined) return response.status(400).json({ error: 'Idempotency-Key is required' })
  if (!/^[\x21-\x7e]{1,200}$/.test(key) || request.headersDistinct['idempotency-key'].length > 1) {
    return response.status(400).json({ error: 'Idempotency-Key must have 1 to 200 visible characters' })
  }
  const user = fault === 'no user' ? '' : request.get('Authorization')
  const name = digest(user, request.method, request.path, key)
  const fingerprint = digest(request.body.toString('base64'))
  const record = records.get(name)
  if ((record?.fingerprint ?? running.get(name) ?? fingerprint) !== fingerprint) {
    return response.status(409).json({ error: 'the key belongs to another request' })
  }
  if (record) return sendAnswer(response, record.answer)
  if (running.has(name)) return response.status(425).set('Retry-After', '1').json({ error: 'the first request is running' })
  running.set(name, fingerprint)
  response.locals.id = fault ? crypto.randomUUID() : digest(name) // of an operation, or of this execution
  response.locals.finish = (answer) => {
    if (answer.status < 500) keepRecord({ name, fingerprint, answer })
    running.delete(name)
    sendAnswer(response, answer)
  }
  next()
}

const app = express()
app.disable('x-powered-by').disable('etag')
app.use(express.raw({ type: () => true, limit: '4mb' }))
app.all('/payments', once, (request, response) => {
  const { id, finish } = response.locals
  let payment
  try {
    payment = JSON.parse(request.body)
  } catch {
    payment = {}
  }
  if (!payment.amount) return finish({ status: 422, header: {}, body: { error: 'an amount is missing' } })
  setTimeout(() => {
    chargeOnce(id)
    finish({ status: 201, header: { Location: `/payments/${id}` }, body: { id, amount: payment.amount } })
  }, 10)
})
app.get('/count', (request, response) => response.send(String(readLines(charges).length)))
app.listen(port, '127.0.0.1')
