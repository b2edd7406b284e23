// Repeats a mutation that pays until the outcome is known. The argument of the program is the URL of the API.
import { Client, fetchExchange, gql } from '@urql/core'
import { retryExchange } from '@urql/exchange-retry'

// With a key, the client may repeat a mutation after any failure of the network, and whenever the server says so.
const retry = retryExchange({
  initialDelayMs: 100, // 1000, which is also the default, is what the server asks for in retryAfter
  maxNumberAttempts: 10,
  retryIf: (error) => Boolean(error.networkError) ||
    error.graphQLErrors.some((e) => e.extensions.retry === 'same-key'),
})
// A timeout, because a stalled answer must not block the mutation for ever.
const patient = (url, init) => fetch(url, { ...init, signal: AbortSignal.any([init.signal, AbortSignal.timeout(60_000)]) })
const client = new Client({ url: process.argv[2], preferGetMethod: false, fetch: patient, exchanges: [retry, fetchExchange] })

const Pay = gql`
  mutation Pay($key: String!, $cents: Int!) {
    pay(input: { cents: $cents }) @idempotent(key: $key) { id cents state }
  }`

// The key is stored with the order, before the first request.
async function pay(key, cents) {
  const { data, error, extensions } = await client.mutation(Pay, { key, cents }).toPromise()
  if (error) {
    console.log(`${key}, ${cents} cents: ${error.graphQLErrors[0]?.extensions.code ?? error.message}`)
    return
  }
  const replayed = extensions?.idempotency?.replayed.includes('pay') ?? false
  console.log(`${key}, ${cents} cents: ${data.pay.id}, ${data.pay.state}, replayed: ${replayed}`)
}

await pay('order-1', 4200)
await pay('order-1', 9900) // a mistake of the client
