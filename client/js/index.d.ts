/** Options are the fields of `fetch`, such as `headers`, `credentials` and `signal`, and those below. */
export interface SendOptions extends Omit<RequestInit, 'body'> {
  /**
   * The key of the operation: 1 to 255 visible ASCII characters. Without it, the oldest operation that is pending for the
   * URL goes first, and the key of a new operation is a random UUID.
   */
  key?: string

  /**
   * Where the operation is kept until its answer is final. The default is `sessionStorage`, which survives a reload of
   * the page, or the memory of the process where there is no `sessionStorage`.
   */
  storage?: KeyStorage

  /** Sends each attempt, with the names of headers in lower case. The default is `fetch`. */
  fetch?: (url: string | URL, init: RequestInit & { headers: Record<string, string> }) => Promise<Response>

  /**
   * Reports whether every retry gets the same answer. The default is true unless the status is 401, 408, 425, 429, 499,
   * or 500 and more, or 409 with Retry-After. The function must not read the body. A refusal with the member `retry`
   * (application/problem+json) decides for itself.
   */
  isFinal?: (answer: Response) => boolean
}

/** The part of `Storage` that keeps operations. */
export interface KeyStorage {
  getItem(name: string): string | null
  setItem(name: string, value: string): void
  removeItem(name: string): void
}

/** An operation whose answer is unknown. */
export interface Operation {
  key: string
  method: string
  /** The JSON that was sent, or undefined without a value. */
  body?: string
}

/** What became of an operation, as the service tells it. */
export interface KeyStatus {
  state: 'never-seen' | 'running' | 'unfinished' | 'done' | 'not-kept' | 'outcome-unknown'
  /** The operation, as in problems and logs of the service. */
  instance: string
  /** The status of the answer, if the operation is completed. */
  status?: number
  /** The first attempt began at this time (RFC 3339). */
  began?: string
  completed?: string
  /** The key is kept until this time. */
  keptUntil?: string
}

/**
 * Sends value as JSON to url until there is a final answer. All attempts have the same key and body, so a service that
 * honours the header Idempotency-Key carries the operation out once. The method is POST unless `options.method` says
 * otherwise.
 *
 * Key, method and body are kept from before the first attempt until the final answer. An operation that is pending for url
 * goes first, unchanged, and value is not sent: the answer is that of the pending operation. So a page that is loaded with
 * a pending operation calls `sendOnce(url)`, with the same headers as before. With `options.key`, only the operation with
 * this key goes first. Outside of a page, as in Node, `options.key` or `options.storage` is required, because one process
 * may act for several users: calls without a key for one URL send one operation, and all get its answer.
 *
 * The answer is complete: its body can be read at any time. An answer with status 401 is returned although it is not
 * final, and the operation stays pending, so that the user can log in and try again. A service that leads to a page for
 * the login instead of answering with 401 needs an `isFinal` that is false for `answer.redirected`: otherwise the page is
 * the final answer, and the next attempt has a new key.
 *
 * An attempt takes at most 60 seconds, and there are at most 8, with pauses of up to 10 seconds between them, or up to 60
 * if Retry-After asks for more. For 5 minutes, attempts that find the operation in progress do not count.
 *
 * Rejects with
 * - an Error with the last failure as its cause, if there is no final answer: the operation stays pending;
 * - the reason of `options.signal`, if the signal is aborted: the operation stays pending;
 * - the error of the storage, if the storage does not take the operation: nothing was sent;
 * - a TypeError, if no request can have the key or a header, or if the key is missing outside of a page: nothing was sent,
 *   and nothing is pending.
 */
export function sendOnce(url: string | URL, value?: unknown, options?: SendOptions): Promise<Response>

/** Returns the oldest operation that is pending for url, or the one with the key, or null. */
export function pending(url: string | URL, options?: Pick<SendOptions, 'key' | 'storage'>): Operation | null

/**
 * Asks the service what became of the operation, after an answer of sendOnce such as `outcome-unknown`. The question goes
 * to the `statusUrl` of the answer, with the headers and credentials of the operation, and changes nothing. The result is
 * null if answer is not from sendOnce, has no `statusUrl` at its own origin, or came by a redirect from another origin.
 * Rejects if the service does not tell.
 */
export function askStatus(answer: Response): Promise<KeyStatus | null>

/** Returns a random UUID, also on pages by plain http. Keep the key with the operation before sending. */
export function newKey(): string
