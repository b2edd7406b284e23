// Compiled by js_test.go. TypeScript must refuse each line after "@ts-expect-error".
import { askStatus, newKey, pending, sendOnce } from '@idempotency-go/client'
import type { KeyStatus, Operation, SendOptions } from '@idempotency-go/client'

const options: SendOptions = {
  key: newKey(),
  method: 'PATCH',
  headers: { Authorization: 'Bearer x' },
  credentials: 'include',
  signal: AbortSignal.timeout(60_000),
  storage: localStorage,
  fetch: (url, init) => fetch(url, { ...init, headers: { ...init.headers, Authorization: 'Bearer y' } }),
  isFinal: (answer) => answer.status < 500,
}

export async function pay(amount: number): Promise<string> {
  const operation: Operation | null = pending('/payments', { storage: localStorage })
  const answer: Response = await sendOnce(new URL('https://shop.example/payments'), { amount }, options)
  const status: KeyStatus | null = await askStatus(answer)
  switch (status?.state) {
    case 'done': return `${status.status}, kept until ${status.keptUntil}`
    // @ts-expect-error there is no such state
    case 'finished': return ''
  }
  await sendOnce('/payments')
  // @ts-expect-error the body is the second argument
  await sendOnce('/payments', { amount }, { body: 'x' })
  // @ts-expect-error a key is a string
  await sendOnce('/payments', { amount }, { key: 7 })
  // @ts-expect-error the status may be unknown
  return operation?.key ?? status.instance
}
