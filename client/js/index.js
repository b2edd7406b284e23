// The documentation of the exported functions is in index.d.ts.

const attemptTimeout = 60_000 // milliseconds for one attempt, with the whole answer
const maxAttempts = 8 // attempts that found the operation in progress do not count before maxWait is over
const maxWait = 5 * 60_000 // milliseconds
const maxRetryAfter = 60 // seconds; setTimeout does not wait at all for more than 24 days
const maxKeepalive = 16_000 // UTF-16 units: browsers refuse more than 64 KiB, and a unit has at most 3 bytes

export async function sendOnce(url, value, options = {}) {
  options.signal?.throwIfAborted()
  const { key, storage, fetch: send = globalThis.fetch, isFinal = isStored, signal, ...init } = options
  if (key === undefined && storage === undefined && globalThis.document === undefined) {
    throw new TypeError('Outside of a page, the operation needs a key, or a storage of its user.')
  }
  const entries = storage ?? defaultStorage()
  const operation = pending(url, options) ??
    { key: key ?? newKey(), method: init.method ?? 'POST', body: JSON.stringify(value) }
  const request = { ...init, method: operation.method, headers: makeHeaders(init, operation), body: operation.body }
  request.keepalive ??= (operation.body ?? '').length < maxKeepalive
  keepOperation(entries, url, operation)

  let lastFailure
  const waitUntil = Date.now() + maxWait
  for (let attempts = 0; attempts < maxAttempts;) {
    let seconds = Math.min(2 ** attempts / 4, 10) * (0.5 + Math.random() / 2)
    let inProgress = false
    try {
      const bounds = [AbortSignal.timeout(attemptTimeout)]
      if (signal) bounds.push(signal)
      const response = await send(url, { ...request, signal: AbortSignal.any(bounds) })
      const body = await response.arrayBuffer()
      const answer = new Response(body.byteLength > 0 ? body : null, response)
      const { url: address, redirected } = response // which the constructor leaves out
      Object.defineProperties(answer, { url: { value: address }, redirected: { value: redirected } })
      const problem = parseProblem(answer.headers, body)
      if (isDecided(problem) ?? isFinal(answer)) {
        dropOperation(entries, url, operation)
        noteQuestion(answer, problem?.statusUrl, response, url, { send, init, key: operation.key })
        return answer
      }
      if (answer.status === 401) return answer // the user logs in and tries again: the operation stays pending
      inProgress = isInProgress(answer)
      seconds = Math.max(seconds, Math.min(parseRetryAfter(answer.headers), maxRetryAfter))
      lastFailure = new Error(`The server answered with status ${answer.status}.`)
    } catch (failure) {
      signal?.throwIfAborted()
      lastFailure = failure // there is no answer, or half of an answer, so the outcome is unknown
    }
    if (!inProgress || Date.now() > waitUntil) attempts++
    if (attempts < maxAttempts) await sleep(seconds * 1000, signal)
  }
  const text = 'There is no answer yet. The operation stays pending: sendOnce sends it again, with the same key.'
  throw new Error(text, { cause: lastFailure })
}

export function pending(url, { key, storage = defaultStorage() } = {}) {
  return listOperations(storage, url).find((operation) => key === undefined || operation.key === key) ?? null
}

export async function askStatus(answer) {
  if (!questions.has(answer)) return null
  const { send, address, init, key } = questions.get(answer)
  const signal = AbortSignal.timeout(attemptTimeout)
  const response = await send(address, { ...init, method: 'GET', headers: makeHeaders(init, { key }), signal })
  if (!response.ok) throw new Error(`The server answered the question with status ${response.status}.`)
  return response.json()
}

export function newKey() {
  // crypto.randomUUID is missing on pages by plain http.
  const bytes = crypto.getRandomValues(new Uint8Array(16))
  bytes[6] = bytes[6] & 0x0f | 0x40 // the version, see RFC 9562, section 5.4
  bytes[8] = bytes[8] & 0x3f | 0x80 // the variant
  const digits = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
  return digits.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}

// questions has, for each answer with an address to ask at, what askStatus sends.
const questions = new WeakMap()

// noteQuestion lets askStatus ask about answer. Key and credentials go only to the origin that has received both already:
// fetch leaves the credentials out when it follows a redirect to another origin.
function noteQuestion(answer, statusUrl, response, url, question) {
  if (typeof statusUrl !== 'string' || !URL.canParse(statusUrl, response.url)) return
  const address = new URL(statusUrl, response.url)
  const page = globalThis.location?.href
  const isOwn = (sentTo) => URL.canParse(sentTo, page) && new URL(sentTo, page).origin === address.origin
  if (isOwn(response.url) && (!response.redirected || isOwn(url))) {
    questions.set(answer, { ...question, address: address.href })
  }
}

// makeHeaders returns the headers of a request, or throws a TypeError if no request can have them. The headers are a plain
// object, because functions that add a header often spread the headers that they get, and would lose the key of an instance
// of Headers.
function makeHeaders(init, { key, body }) {
  const headers = new Headers(init.headers)
  if (body !== undefined && !headers.has('content-type')) headers.set('content-type', 'application/json')
  headers.set('idempotency-key', key)
  return Object.fromEntries(headers) // with names in lower case
}

// listOperations returns the operations that are pending for url, the oldest first.
function listOperations(entries, url) {
  return JSON.parse(entries.getItem(entryName(url))) ?? []
}

// keepOperation makes operation pending, unless it is pending already.
function keepOperation(entries, url, operation) {
  const operations = listOperations(entries, url)
  if (operations.some(({ key }) => key === operation.key)) return
  entries.setItem(entryName(url), JSON.stringify([...operations, operation]))
}

// dropOperation ends the wait of an operation for its answer. The other operations stay pending.
function dropOperation(entries, url, operation) {
  const others = listOperations(entries, url).filter(({ key }) => key !== operation.key)
  if (others.length > 0) entries.setItem(entryName(url), JSON.stringify(others))
  else entries.removeItem(entryName(url))
}

// memory takes the place of sessionStorage where there is none, as in a worker or in Node.
const entriesInMemory = new Map()
const memory = {
  getItem: (name) => entriesInMemory.get(name) ?? null,
  setItem: (name, entry) => { entriesInMemory.set(name, entry) },
  removeItem: (name) => { entriesInMemory.delete(name) },
}

function defaultStorage() {
  return globalThis.sessionStorage ?? memory
}

function entryName(url) {
  return `idempotency ${url}`
}

// parseProblem returns a problem (RFC 9457), or undefined if the answer is none.
function parseProblem(headers, body) {
  if (!headers.get('Content-Type')?.startsWith('application/problem+json')) return undefined
  try {
    return JSON.parse(new TextDecoder().decode(body))
  } catch {
    return undefined
  }
}

// isDecided reports whether a refusal is final, by its member "retry". Without the member, the result is undefined.
function isDecided(problem) {
  switch (problem?.retry) {
    case 'same-key': return false
    case 'new-key': case 'never': return true
  }
}

// isStored reports whether a server stores an answer by default, so that every retry gets the same answer.
function isStored(answer) {
  return answer.status < 500 && ![401, 408, 425, 429, 499].includes(answer.status) && !isInProgress(answer)
}

function isInProgress(answer) {
  return answer.status === 409 && answer.headers.has('Retry-After')
}

// parseRetryAfter returns the seconds in the field Retry-After (RFC 9110, section 10.2.3). Without a valid delay,
// parseRetryAfter returns zero or less.
function parseRetryAfter(headers) {
  const value = headers.get('Retry-After') ?? ''
  if (/^\d+$/.test(value)) return Number(value)
  return /GMT$/.test(value) ? (Date.parse(value) - Date.now()) / 1000 || 0 : 0
}

// sleep returns after the given time, or rejects with the reason of signal.
function sleep(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer)
      reject(signal.reason)
    }
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', stop)
      resolve()
    }, milliseconds)
    if (signal?.aborted) stop()
    else signal?.addEventListener('abort', stop, { once: true })
  })
}
