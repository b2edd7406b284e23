// payOnce sends an order until the answer is final. All requests for the order have the same key. A pending order, whose answer
// is unknown, goes first and unchanged. So a page that is loaded with a pending order calls payOnce.
//
// Key and body are in sessionStorage from before the first request until the final answer, and so survive a reload, the back
// button, and a browser that restores its tabs. In localStorage, the orders of two tabs would mix. Limits:
//   - Another tab does not know the key, and a closed tab has lost it. If the server gives the cart an ID, pass the ID as key.
//   - The server forgets the key, after 24 hours by default. An order that is sent after that is a new order.
//
// A page that must see each attempt passes its own function for fetch, as send.
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
      if (response.status === 401) return answer // the user logs in, and presses again: the key is kept
      const asked = Number(response.headers.get('Retry-After')) || 0 // a date counts as 0
      seconds = Math.min(Math.max(seconds, asked), 60) // setTimeout does not wait at all for more than 24 days
    } catch {
      // No answer, or half of an answer: the outcome is unknown.
    }
    await new Promise((resume) => setTimeout(resume, seconds * 1000))
  }
  throw new Error('There is no answer yet. Press again: the order is not carried out twice.')
}

// pending returns key and body of the order whose answer is unknown, or null.
export function pending() {
  return JSON.parse(sessionStorage.getItem('pending'))
}

// isFinal is false for answers that the server does not store. A refusal has advice on a retry in its member "retry".
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
