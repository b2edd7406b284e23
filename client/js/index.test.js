// Started by js_test.go, with the address of a guarded service in SERVICE.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { test } from 'node:test'
import { askStatus, newKey, pending, sendOnce } from './index.js'

const service = process.env.SERVICE
globalThis.document ??= {} // as in a page, where an operation needs no key

// loadWithPauses loads the module with pauses that take as many milliseconds as pause(seconds) returns.
async function loadWithPauses(pause) {
  const name = `timers${newKey()}`
  globalThis[name] = (resume, milliseconds) => setTimeout(resume, pause(milliseconds / 1000))
  const source = `const setTimeout = globalThis['${name}'];` + readFileSync(new URL('index.js', import.meta.url), 'utf8')
  return import('data:text/javascript,' + encodeURIComponent(source))
}

// loadWithoutPauses loads the module so that pauses are added to the list and not made.
function loadWithoutPauses(pauses) {
  return loadWithPauses((seconds) => { pauses.push(seconds) })
}

// startServer starts a server that answers the nth request with answers[n], or with the last of the answers, and returns
// the address, and the requests that have arrived.
async function startServer(t, ...answers) {
  const requests = []
  const server = createServer(async (request, response) => {
    let body = ''
    for await (const part of request) body += part
    requests.push({ method: request.method, url: request.url, headers: request.headers, body })
    const { status, headers = {}, text = '' } = answers[Math.min(requests.length, answers.length) - 1]
    if (status === 0) return request.socket.destroy()
    response.writeHead(status, headers).end(text)
  })
  await new Promise((resume) => server.listen(0, '127.0.0.1', resume))
  t.after(() => server.closeAllConnections() || server.close())
  return { url: `http://127.0.0.1:${server.address().port}/orders`, requests }
}

const keysOf = (requests) => new Set(requests.map(({ headers }) => headers['idempotency-key']))

// newStorage returns a storage like sessionStorage, with its entries.
function newStorage() {
  const entries = new Map()
  return {
    entries,
    getItem: (name) => entries.get(name) ?? null,
    setItem: (name, value) => { entries.set(name, value) },
    removeItem: (name) => { entries.delete(name) },
  }
}

test('a request takes effect once although answers are lost', async () => {
  const url = `${service}/payments?lose=2`
  const answer = await sendOnce(url, { amount: 4200 }, { headers: { Authorization: 'Basic YWxpY2U6c2VjcmV0' } })
  assert.equal(answer.status, 201)
  assert.deepEqual(await answer.json(), { charges: 1, body: '{"amount":4200}', type: 'application/json' })
  assert.equal(answer.headers.get('Idempotent-Replayed'), 'true')
  assert.equal(pending(url), null)
})

test('a client asks what became of its operation', async () => {
  const options = { headers: { Authorization: 'Basic YWxpY2U6c2VjcmV0' } }
  const answer = await sendOnce(`${service}/payments?unknown`, { amount: 4200 }, options)
  const { type } = await answer.json()
  assert.match(type, /#outcome-unknown$/)
  const { state, instance, began } = await askStatus(answer)
  assert.equal(state, 'outcome-unknown')
  assert.match(instance, /^urn:uuid:/)
  assert.ok(Date.parse(began))
})

test('a question that is refused rejects, and an answer without an address has no status', async (t) => {
  const problem = (members) => ({
    status: 409,
    headers: { 'Content-Type': 'application/problem+json' },
    text: JSON.stringify({ retry: 'never', ...members }),
  })
  const refused = await startServer(t, problem({ statusUrl: '/status?of=1' }), { status: 503 })
  await assert.rejects(askStatus(await sendOnce(refused.url)), /status 503/)
  assert.equal(refused.requests[1].method, 'GET')
  assert.equal(refused.requests[1].url, '/status?of=1')
  assert.equal(keysOf(refused.requests).size, 1)

  const foreign = await startServer(t, { status: 200, text: '{}' })
  for (const members of [{}, { statusUrl: foreign.url }, { statusUrl: 7 }, { statusUrl: 'http://' }]) {
    const { url } = await startServer(t, problem(members))
    assert.equal(await askStatus(await sendOnce(url)), null, JSON.stringify(members))
  }
  assert.equal(foreign.requests.length, 0)
  assert.equal(await askStatus(new Response()), null)
})

test('a question goes nowhere that a redirect has kept the credentials from', async (t) => {
  const problem = {
    status: 409,
    headers: { 'Content-Type': 'application/problem+json' },
    text: JSON.stringify({ retry: 'never', statusUrl: '/status' }),
  }
  const headers = { Authorization: 'Bearer secret' }
  const foreign = await startServer(t, problem, { status: 200, text: '{}' })
  const leading = await startServer(t, { status: 307, headers: { Location: foreign.url } })
  assert.equal(await askStatus(await sendOnce(leading.url, 1, { headers })), null)
  assert.deepEqual(foreign.requests.map(({ headers }) => headers.authorization), [undefined])

  const within = await startServer(t, { status: 307, headers: { Location: '/moved' } }, problem,
    { status: 200, text: '{"state":"done"}' })
  assert.equal((await askStatus(await sendOnce(within.url, 1, { headers }))).state, 'done')
  assert.deepEqual(within.requests.map(({ url, headers }) => `${url} ${headers.authorization}`),
    ['/orders', '/moved', '/status'].map((path) => `${path} Bearer secret`))
})

test('a pending operation goes first, with its key and body', async (t) => {
  const { url, requests } = await startServer(t, { status: 401 }, { status: 201 })
  const storage = newStorage()
  assert.equal((await sendOnce(url, { amount: 1 }, { storage, key: 'cart-1' })).status, 401)
  assert.deepEqual(pending(url, { storage }), { key: 'cart-1', method: 'POST', body: '{"amount":1}' })
  assert.equal(pending(`${url}/other`, { storage }), null)

  assert.equal((await sendOnce(url, undefined, { storage })).status, 201)
  assert.deepEqual(requests.map(({ body }) => body), ['{"amount":1}', '{"amount":1}'])
  assert.deepEqual([...keysOf(requests)], ['cart-1'])
  assert.equal(storage.entries.size, 0)
})

test('operations of different addresses do not mix', async (t) => {
  const { url, requests } = await startServer(t, { status: 401 })
  const storage = newStorage()
  await Promise.all(['a', 'b'].map((name) => sendOnce(`${url}/${name}`, name, { storage })))
  assert.deepEqual(new Set(requests.map(({ url, body }) => url + body)), new Set(['/orders/a"a"', '/orders/b"b"']))
  assert.equal(keysOf(requests).size, 2)
})

test('operations with different keys do not mix, and one may stay pending', async (t) => {
  const { url, requests } = await startServer(t, { status: 401 }, { status: 401 }, { status: 201 })
  const storage = newStorage()
  await Promise.all(['cart-1', 'cart-2'].map((key) => sendOnce(url, key, { key, storage })))
  assert.deepEqual(new Set(requests.map(({ headers, body }) => `${headers['idempotency-key']} ${body}`)),
    new Set(['cart-1 "cart-1"', 'cart-2 "cart-2"']))

  assert.equal((await sendOnce(url, 'another', { key: 'cart-2', storage })).status, 201)
  assert.equal(requests[2].body, '"cart-2"')
  assert.equal(pending(url, { storage, key: 'cart-2' }), null)
  assert.equal(pending(url, { storage }).key, 'cart-1')
})

test('outside of a page, an operation needs a key or a storage', async (t) => {
  const { url, requests } = await startServer(t, { status: 201 })
  const { document } = globalThis
  delete globalThis.document
  t.after(() => { globalThis.document = document })
  await assert.rejects(sendOnce(url, 1), TypeError)
  assert.equal(requests.length, 0)
  for (const options of [{ key: 'order-1' }, { storage: newStorage() }]) {
    assert.equal((await sendOnce(url, 1, options)).status, 201)
  }
})

test('a pending operation keeps its method', async (t) => {
  const { url, requests } = await startServer(t, { status: 401 }, { status: 201 })
  const storage = newStorage()
  await sendOnce(url, 1, { storage, method: 'PATCH' })
  await sendOnce(url, undefined, { storage })
  assert.deepEqual(requests.map(({ method }) => method), ['PATCH', 'PATCH'])
})

test('nothing stays pending if no request can have the key or the headers', async (t) => {
  const { url, requests } = await startServer(t, { status: 201 })
  const storage = newStorage()
  for (const options of [{ key: '\u043a\u043b\u044e\u0447' }, { key: 'a\nb' }, { headers: { 'two words': '1' } }]) {
    await assert.rejects(sendOnce(url, 1, { ...options, storage }), TypeError)
    assert.equal(storage.entries.size, 0)
  }
  assert.equal(requests.length, 0)
})

test('concurrent calls send one operation, and the late answer leaves the next operation pending', async (t) => {
  const { url, requests } = await startServer(t, { status: 201 }, { status: 401 })
  const storage = newStorage()
  let releaseFirst
  const held = new Promise((resolve) => { releaseFirst = resolve })
  const send = async (...request) => {
    const answer = await fetch(...request)
    await held
    return answer
  }
  const first = sendOnce(url, 1, { storage, fetch: send })
  storage.entries.clear() // another call has got the final answer
  await sendOnce(url, 2, { storage })
  releaseFirst()
  assert.equal((await first).status, 201)
  assert.equal(pending(url, { storage }).body, '2')
  assert.equal(keysOf(requests).size, 2)

  const again = await startServer(t, { status: 201 })
  await Promise.all([sendOnce(again.url, 1, { storage }), sendOnce(again.url, 1, { storage })])
  assert.equal(keysOf(again.requests).size, 1)
})

test('nothing is sent if the storage does not take the operation', async (t) => {
  const { url, requests } = await startServer(t, { status: 201 })
  const storage = { ...newStorage(), setItem: () => { throw new Error('quota') } }
  await assert.rejects(sendOnce(url, 1, { storage }), /quota/)
  assert.equal(requests.length, 0)
})

test('after 8 attempts the operation stays pending, and the error has the cause', async (t) => {
  const pauses = []
  const patient = await loadWithoutPauses(pauses)
  const { url, requests } = await startServer(t, { status: 503 }, { status: 0 })
  const failure = await patient.sendOnce(url, 1).catch((error) => error)
  assert.match(failure.message, /no answer yet/)
  assert.equal(failure.cause.name, 'TypeError')
  assert.equal(requests.length, 8)
  assert.equal(pauses.length, 7)
  const longest = pauses.map((_, i) => Math.min(2 ** i / 4, 10))
  assert.ok(pauses.every((seconds, i) => seconds >= longest[i] / 2 && seconds <= longest[i]), String(pauses))
  assert.equal(patient.pending(url).key, [...keysOf(requests)][0])
})

test('attempts that find the operation in progress do not count', async (t) => {
  const pauses = []
  const patient = await loadWithoutPauses(pauses)
  const inProgress = { status: 409, headers: { 'Retry-After': '2' } }
  const { url, requests } = await startServer(t, ...Array(20).fill(inProgress), { status: 201 })
  assert.equal((await patient.sendOnce(url, 1)).status, 201)
  assert.equal(requests.length, 21)
  assert.deepEqual(pauses, Array(20).fill(2))
})

test('Retry-After may be a date', async (t) => {
  const pauses = []
  const patient = await loadWithoutPauses(pauses)
  const later = new Date(Date.now() + 30_000).toUTCString()
  const { url } = await startServer(t, { status: 503, headers: { 'Retry-After': later } }, { status: 201 })
  assert.equal((await patient.sendOnce(url, 1)).status, 201)
  assert.ok(pauses[0] > 20 && pauses[0] <= 30, String(pauses))
})

test('a signal ends an attempt', async () => {
  const controller = new AbortController()
  const storage = newStorage()
  const hang = (_, { signal }) => new Promise((_, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason))
    setImmediate(() => controller.abort(new Error('the user left')))
  })
  await assert.rejects(sendOnce('/x', 1, { storage, signal: controller.signal, fetch: hang }), /the user left/)
  assert.equal(pending('/x', { storage }).body, '1')
  await assert.rejects(sendOnce('/y', 1, { storage, signal: controller.signal, fetch: hang }), /the user left/)
  assert.equal(pending('/y', { storage }), null)
})

test('a signal ends the last attempt', async () => {
  const controller = new AbortController()
  const { sendOnce } = await loadWithoutPauses([])
  let attempts = 0
  const lose = async () => {
    if (++attempts === 8) controller.abort(new Error('the user left'))
    throw new Error('lost')
  }
  await assert.rejects(sendOnce('/x', 1, { signal: controller.signal, fetch: lose }), /the user left/)
})

test('a signal ends a pause', async (t) => {
  const controller = new AbortController()
  const { url, requests } = await startServer(t, { status: 503 })
  const { sendOnce, pending } = await loadWithPauses(() => {
    setImmediate(() => controller.abort(new Error('the user left')))
    return 600_000
  })
  await assert.rejects(sendOnce(url, 1, { signal: controller.signal }), /the user left/)
  assert.equal(requests.length, 1)
  assert.equal(pending(url).body, '1')
})

test('the options of fetch are kept', async () => {
  const seen = []
  const send = async (url, init) => { seen.push(init); return new Response(null, { status: 204 }) }
  const answer = await sendOnce('/x', 'y'.repeat(20_000), {
    fetch: send, storage: newStorage(), method: 'PATCH', credentials: 'include',
    headers: { 'Content-Type': 'text/x-order' },
  })
  assert.equal(answer.status, 204)
  await sendOnce('/x', 1, { fetch: send, storage: newStorage() })
  await sendOnce('/x', undefined, { fetch: send, storage: newStorage(), keepalive: false })
  assert.equal(seen[0].headers['content-type'], 'text/x-order')
  assert.deepEqual(seen.map(({ method, credentials, keepalive }) => [method, credentials, keepalive]),
    [['PATCH', 'include', false], ['POST', undefined, true], ['POST', undefined, false]])
  assert.deepEqual(Object.keys(seen[2].headers), ['idempotency-key'])
})

test('a refusal says whether it is final', async (t) => {
  const refusal = (status, retry) => ({
    status, headers: { 'Content-Type': 'application/problem+json; charset=utf-8' }, text: JSON.stringify({ retry }),
  })
  for (const retry of ['never', 'new-key']) {
    const { url, requests } = await startServer(t, refusal(503, retry))
    assert.equal((await sendOnce(url, 1)).status, 503)
    assert.equal(requests.length, 1)
  }
  const { url, requests } = await startServer(t, refusal(400, 'same-key'), { status: 201 })
  assert.equal((await sendOnce(url, 1)).status, 201)
  assert.equal(requests.length, 2)
})

test('a service decides which answers are final', async (t) => {
  const { url, requests } = await startServer(t, { status: 404 }, { status: 500 })
  const answer = await sendOnce(url, 1, { isFinal: ({ status }) => status !== 404 })
  assert.equal(answer.status, 500)
  assert.equal(requests.length, 2)
})

test('a page for the login need not be the final answer', async (t) => {
  const toLogin = { status: 303, headers: { Location: '/login' } }
  const { url, requests } = await startServer(t, toLogin, { status: 200 }, { status: 201 })
  const redirected = []
  const answer = await sendOnce(url, 1, { isFinal: (answer) => redirected.push(answer.redirected) && !answer.redirected })
  assert.deepEqual(redirected, [true, false])
  assert.equal(answer.url, url)
  assert.deepEqual(requests.map(({ method, url }) => `${method} ${url}`), ['POST /orders', 'GET /login', 'POST /orders'])
})

test('a body that is no text arrives unchanged', async () => {
  const bytes = new Uint8Array([0xff, 0x00, 0xfe])
  const answer = await sendOnce('/x', 1, { storage: newStorage(), fetch: async () => new Response(bytes) })
  assert.deepEqual(new Uint8Array(await answer.arrayBuffer()), bytes)
})

test('keys are random UUIDs', () => {
  const keys = new Set(Array.from({ length: 100 }, newKey))
  assert.equal(keys.size, 100)
  for (const key of keys) assert.match(key, /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
})
