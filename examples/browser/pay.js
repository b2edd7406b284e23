// payOnce sends an order until there is a final answer. The order has one key, whatever happens to its requests.
export async function payOnce(url, order) {
  // An order whose answer is not known goes first, as it was sent, even after a reload of the page.
  const pending = JSON.parse(sessionStorage.getItem('pending')) ?? { key: crypto.randomUUID(), body: JSON.stringify(order) }
  sessionStorage.setItem('pending', JSON.stringify(pending))
  const headers = { 'Content-Type': 'application/json', 'Idempotency-Key': pending.key }
  for (let attempt = 0; attempt < 8; attempt++) {
    let seconds = Math.min(2 ** attempt / 4, 10) * (0.5 + Math.random() / 2)
    try {
      const response = await fetch(url, { method: 'POST', headers, body: pending.body, keepalive: true })
      const answer = { status: response.status, text: await response.text() }
      if (response.status === 401) return answer // log in, and press again: the key is kept
      if (isFinal(response)) {
        sessionStorage.removeItem('pending')
        return answer
      }
      seconds = Math.max(seconds, Number(response.headers.get('Retry-After')) || 0)
    } catch {
      // No answer, or half of one: nobody knows what has happened.
    }
    await new Promise((resume) => setTimeout(resume, seconds * 1000))
  }
  throw new Error('There is no answer yet. Press again: the order is not carried out twice.')
}

// isFinal is false for answers that the server does not store.
function isFinal({ status, headers }) {
  return status < 500 && ![401, 408, 425, 429, 499].includes(status) && !(status === 409 && headers.has('Retry-After'))
}
