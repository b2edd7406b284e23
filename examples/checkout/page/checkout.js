// The page acts for the customer: each press goes to the shop on both sides, with the key of the order. Only the side with the
// middleware pays by sendOnce, because only there a repeated order is safe.
//
// What the page says about charges must fit what it says about answers at any moment. So an answer is shown together with a
// ledger that was read after the answer had arrived, and the numbers and sentences change in one go: see refresh.

import { newKey, pending, sendOnce } from './idempotency.js'

const price = { amount: 4200, currency: 'EUR' }
const currencyFormat = new Intl.NumberFormat('en', { style: 'currency', currency: price.currency })
const sides = ['without', 'with']
const addressOf = (side) => `shop/${side}/payments`
const buttons = document.querySelectorAll('button')

let orders = 0
let order = newOrder()
let arrived = [] // functions that show the answers that no ledger has been read after
let refreshing = Promise.resolve()
let consoleAddress // of the operators' console, if there is one
let busy = true
let done = 0 // actions

// story has the scenes of playStory.
const story = [
  ['A customer pays, and the answer gets lost.', () => press(1, 'lose')],
  ['The customer tries again.', () => press(1)],
  ['Did it work? The customer presses ten times at once.', () => press(10)],
  ['Another order: the server charges, and is killed before it answers.', () => { startOver(); return stopServer() }],
  ['The customer tries again.', () => press(1)],
  ['And once more.', () => press(1)],
]

on('story', playStory)
on('pay', () => press(1))
on('lose', () => press(1, 'lose'))
on('ten', () => press(10))
on('stop', stopServer)
on('fresh', startOver)

function on(id, action) {
  document.getElementById(id).addEventListener('click', () => busy || act(action))
}

// act runs one action at a time. During the action, the Tab key still reaches the buttons.
async function act(action) {
  setBusy(true)
  setText('#scene', '')
  let acting = true
  const acted = Promise.resolve(action()).finally(() => { acting = false })
  do {
    await refresh()
    await pause(acting ? 100 : 0)
  } while (acting)
  await refresh()
  setBusy(false)
  await acted
}

function setBusy(is) {
  busy = is
  for (const button of buttons) button.setAttribute('aria-disabled', String(is))
  if (!is) document.body.dataset.done = done++
}

// playStory plays all scenes, with time to read, and says what both orders came to.
async function playStory() {
  startOver()
  const played = new Set()
  for (const [i, [what, action]] of story.entries()) {
    setText('#scene', `${i + 1} of ${story.length}: ${what}`)
    await pause(900)
    await action()
    await refresh()
    played.add(order)
    await pause(1200)
  }
  const sum = (count) => [...played].map(count).reduce((a, b) => a + b)
  const charged = (side) => {
    const charges = sum((o) => o[side].charges)
    return `${charges} ${charges === 1 ? 'charge' : 'charges'}, ${formatMoney(sum((o) => o[side].total))}`
  }
  setText('#scene', `The end. ${played.size} orders, ${sum((o) => o.presses)} presses. ` +
    `Without the middleware: ${charged('without')}. With it: ${charged('with')}.`)
}

// newOrder returns the pending order, if any, or a new order.
function newOrder() {
  const newSide = () => ({ charges: 0, total: 0, presses: [] })
  return { number: ++orders, key: pending(addressOf('with'))?.key ?? newKey(), presses: 0, without: newSide(), with: newSide() }
}

function startOver() {
  order = newOrder()
  for (const list of document.querySelectorAll('.presses')) list.replaceChildren()
  render()
}

// press presses the given number of times at once, and waits for the answers.
function press(times, fault, at = sides) {
  const all = []
  for (let i = 0; i < times; i++) {
    order.presses++
    for (const side of at) all.push(pay(side, addPress(side, order.presses), fault))
  }
  render()
  return Promise.allSettled(all) // the list shows a press without an answer
}

function pay(side, press, fault) {
  const url = addressOf(side)
  const payment = { purchase: order.key, ...price }
  const send = sender(press, fault)
  if (side === 'with') return sendOnce(url, payment, { key: order.key, fetch: send })
  const headers = { 'Content-Type': 'application/json', 'Idempotency-Key': order.key }
  return send(url, { method: 'POST', headers, body: JSON.stringify(payment) })
}

// sender returns a fetch function for the requests of a press. The first request has the fault.
function sender(press, fault) {
  return async (url, init) => {
    const headers = fault ? { ...init.headers, 'Checkout-Fault': fault } : init.headers
    fault = undefined
    const request = formatRequest(url, headers, init.body)
    try {
      const response = await fetch(url, { ...init, headers })
      const text = await response.clone().text()
      arrived.push(() => showAnswer(press, request, response, text))
      return response
    } catch (error) {
      arrived.push(() => showLoss(press, request))
      throw error
    }
  }
}

// stopServer pays, has the server killed as soon as the server holds the answers of both sides, and waits for the next start.
function stopServer() {
  return Promise.all([press(1, 'hold'), fetch('kill?held=2', { method: 'POST' })])
}

// refresh reads the ledger, and shows the answers that had arrived before. One refresh follows another, so that an old ledger
// never replaces a newer one.
function refresh() {
  return refreshing = refreshing.then(async () => {
    const asked = order, answers = arrived
    arrived = []
    let ledger
    try {
      ledger = await (await fetch(`ledger?purchase=${asked.key}`)).json()
    } catch {
      arrived = answers.concat(arrived)
      return setText('#server', 'The program has ended. Start it again, and load this page.')
    }
    for (const show of answers) show()
    for (const side of sides) Object.assign(asked[side], ledger[side])
    consoleAddress = ledger.server.console
    render()
    showServer(ledger.server)
  })
}

// render shows the numbers of the order, and the sentences about them.
function render() {
  setText('#number', String(order.number))
  setText('#key', order.key)
  setText('#pay b', order.presses === 0 ? `Pay ${formatMoney(price.amount)}` : 'Try again')
  for (const side of sides) {
    document.getElementById(side).dataset.is = judge(order[side])
    setText(`#${side} .charges`, String(order[side].charges))
    setText(`#${side} .total`, formatMoney(order[side].total))
    setText(`#${side} .verdict`, describe(order[side], side))
  }
  showOperator()
}

function judge(side) {
  if (side.charges > 1) return 'wrong'
  if (isUnknown(side)) return 'unsure'
  if (side.charges === 0) return 'idle'
  return receiptsOf(side).length === 0 ? 'unsure' : 'right'
}

// describe returns a sentence about a side.
function describe(side, name) {
  const { charges, total, presses } = side
  const receipts = receiptsOf(side)
  const waits = presses.some((press) => press.kind === 'waiting')
  if (charges > 1) return `The customer was charged ${times(charges)} for one order: ${formatMoney(total - price.amount)} too much.`
  if (isUnknown(side)) {
    const fact = charges === 0 ? 'Nothing was charged' : 'The customer was charged once'
    return `${fact}, but the shop has died and cannot know it. An operator has to look.`
  }
  if (charges === 0) return waits ? 'The shop is at work. Nothing was charged yet.' : 'Nothing was charged yet.'
  if (receipts.length === 0 && waits) return 'The customer was charged once, and waits for the receipt.'
  if (receipts.length === 0) {
    const risk = name === 'with' ? 'Trying again is safe.' : 'Trying again will charge again.'
    return `The customer was charged once, and does not know it. ${risk}`
  }
  if (receipts.length === 1) return 'The customer was charged once, and got the receipt.'
  return `The customer was charged once, and got the same receipt ${times(receipts.length)}.`
}

function receiptsOf(side) {
  return side.presses.filter((press) => press.receipt)
}

// isUnknown reports whether the shop refuses the order because it does not know what has become of it: see -console.
function isUnknown(side) {
  return receiptsOf(side).length === 0 && side.presses.at(-1)?.kind === 'unknown'
}

// showOperator shows where an operator ends an order of which the shop does not know the outcome.
function showOperator() {
  const box = document.querySelector('.operator')
  if (!isUnknown(order.with) || !consoleAddress) return box.replaceChildren()
  if (box.firstChild) return
  const steps = document.getElementById('operator-steps').content.cloneNode(true)
  steps.querySelector('.charges-link').href = new URL('../charges', consoleAddress)
  steps.querySelector('.console-link').href = new URL(`operation?id=${order.with.presses.at(-1).operation}`, consoleAddress)
  box.replaceChildren(steps)
}

function showServer({ running, deaths }) {
  document.getElementById('server').classList.toggle('dead', !running)
  if (!running) return setText('#server', 'The server was killed. It starts again in a moment.')
  const since = deaths === 0 ? '' : ` It was killed ${times(deaths)} and started again.`
  setText('#server', 'The server is running.' + since)
}

// addPress adds a press without an answer to the list of a side. The list has the newest press first.
function addPress(side, number) {
  const row = document.getElementById('press-row').content.cloneNode(true).querySelector('li')
  row.value = number
  row.querySelector('.number').textContent = `${number}.`
  document.querySelector(`#${side} .presses`).prepend(row)
  const press = { side, row, sent: 0 }
  order[side].presses.push(press)
  showPress(press, 'waiting', 'Waiting', 'for the shop')
  return press
}

function showAnswer(press, request, { status, statusText, headers }, text) {
  const line = `${status} ${statusText}`
  showExchange(press, request, formatMessage(line, [...headers], text))
  if (status !== 201) {
    const isProblem = headers.get('Content-Type') === 'application/problem+json'
    const { type, title, instance } = isProblem ? JSON.parse(text) : { type: '', title: text.trim() }
    press.operation = instance?.replace('urn:uuid:', '')
    return showPress(press, type.endsWith('outcome-unknown') ? 'unknown' : 'refused', line, title)
  }
  const isReplay = headers.get('Idempotent-Replayed') === 'true'
  press.receipt = JSON.parse(text).receipt
  if (isReplay) return showPress(press, 'replayed', line, 'replayed')
  showPress(press, 'new', line, press.side === 'with' ? 'first answer' : 'new charge')
}

function showLoss(press, request) {
  showExchange(press, request, 'None: the connection broke.')
  showPress(press, 'lost', 'No answer', 'the connection broke')
}

function showPress(press, kind, status, what) {
  press.kind = press.row.className = kind
  press.row.querySelector('.status').textContent = status
  press.row.querySelector('.what').textContent = press.sent > 1 ? `${what}, sent ${times(press.sent)}` : what
  press.row.querySelector('.receipt').textContent = press.receipt ?? ''
}

// showExchange adds a request and the answer to it to the folded part of a press.
function showExchange(press, request, response) {
  press.sent++
  const exchange = document.getElementById('exchange').content.cloneNode(true)
  exchange.querySelector('.request').textContent = request
  exchange.querySelector('.response').textContent = response
  press.row.querySelector('details').append(exchange)
}

function formatRequest(url, headers, body) {
  return formatMessage(`POST ${new URL(url, location).pathname}`, Object.entries(headers), body)
}

function formatMessage(line, headers, body) {
  const fields = headers.map(([name, value]) => `${name.replace(/\b[a-z]/g, (c) => c.toUpperCase())}: ${value}`)
  return [line, ...fields, '', body.trim()].join('\n')
}

function formatMoney(cents) {
  return currencyFormat.format(cents / 100)
}

function times(n) {
  return ['never', 'once', 'twice'][n] ?? `${n} times`
}

function pause(milliseconds) {
  return new Promise((resume) => setTimeout(resume, milliseconds))
}

// setText writes only changed texts, because screen readers read every written text out.
function setText(selector, text) {
  const element = document.querySelector(selector)
  if (element.textContent !== text) element.textContent = text
}

await refresh()
setBusy(false)
if (pending(addressOf('with'))) act(() => press(1, undefined, ['with']))
