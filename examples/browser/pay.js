// payOnce sends an order until there is a final answer. The order has one key, whatever happens to its requests. An order
// whose answer is not known goes first, as it was sent: when a page is loaded and an order is pending, it calls payOnce.
//
// Key and body are in sessionStorage from before the first request until the final answer. So they survive a reload, the
// back button, and a browser that restores its tabs. In localStorage, the orders of two tabs would mix. What this cannot do:
//   - Another tab does not know the key, and a closed tab has lost it. If the server gives the cart an ID, pass it as key.
//   - An order that is sent after the server has forgotten the key, 24 hours by default, is a new one.
//
// A page that has to see each attempt passes a function in place of fetch, as send.
export async function payOnce(url, order, { key, send = fetch } = {}) {
  const payment = pending() ?? { key: key ?? crypto.randomUUID(), body: JSON.stringify(order) }
  sessionStorage.setItem('pending', JSON.stringify(payment))
  const headers = { 'Content-Type': 'application/json', 'Idempotency-Key': payment.key }
  for (let attempt = 0; attempt < 8; attempt++) {
    let seconds = Math.min(2 ** attempt / 4, 10) * (0.5 + Math.random() / 2)
    try {
      const signal = AbortSignal.timeout(60_000) // for the whole answer
      const response = await send(url, { method: 'POST', headers, body: payment.body, keepalive: true, signal })
      const answer = { status: response.status, text: await response.text() }
      if (isFinal(response, answer.text)) {
        sessionStorage.removeItem('pending')
        return answer
      }
      if (response.status === 401) return answer // log in, and press again: the key is kept
      const asked = Number(response.headers.get('Retry-After')) || 0 // also if it is a date
      seconds = Math.min(Math.max(seconds, asked), 60) // setTimeout takes a pause above 24 days for none
    } catch {
      // No answer, or half of one: nobody knows what has happened.
    }
    await new Promise((resume) => setTimeout(resume, seconds * 1000))
  }
  throw new Error('There is no answer yet. Press again: the order is not carried out twice.')
}

// pending returns key and body of the order whose answer is not known, or null.
export function pending() {
  return JSON.parse(sessionStorage.getItem('pending'))
}

// isFinal is false for answers that the server does not store. A refusal says itself whether the key may be sent again.
function isFinal({ status, headers }, text) {
  switch (retryOf(headers, text)) {
    case 'same-key': return false
    case 'new-key': case 'never': return true
  }
  return status < 500 && ![401, 408, 425, 429, 499].includes(status) && !(status === 409 && headers.has('Retry-After'))
}

// retryOf returns the member "retry" of a problem (RFC 9457).
function retryOf(headers, text) {
  if (!headers.get('Content-Type')?.startsWith('application/problem+json')) return undefined
  try {
    return JSON.parse(text).retry
  } catch {
    return undefined
  }
}
