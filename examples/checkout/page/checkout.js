// The page acts for the customer: each press goes to the shop on both sides, with the key of the order. Only the side with the
// middleware pays by payOnce, because only there a repeated order is safe.

import { payOnce, pending } from './pay.js'

const sides = ['without', 'with']
const buttons = document.querySelectorAll('button')
let order = newOrder()
let busy = true
let done = 0 // actions

// newOrder returns the pending order, if any, or a new order.
function newOrder() {
  return { key: pending()?.key ?? newKey(), presses: 0, without: newSide(), with: newSide() }
}

// newKey does not use crypto.randomUUID, because browsers lack the function on pages by plain http, such as this page on a phone.
function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16))
  return Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('')
}

function newSide() {
  return { charges: 0, answers: 0, receipts: new Set() }
}

on('pay', () => press(1))
on('lose', () => press(1, 'lose'))
on('ten', () => press(10))
on('stop', () => Promise.all([press(1, 'hold'), killServer()]))
on('fresh', startOver)

function on(id, action) {
  document.getElementById(id).addEventListener('click', () => busy || act(action))
}

// act runs one action at a time. During the action, the Tab key still reaches the buttons.
async function act(action) {
  setBusy(true)
  const watching = setInterval(showLedger, 250)
  try {
    await action()
  } finally {
    clearInterval(watching)
    await showLedger()
    tell()
    setBusy(false)
  }
}

function setBusy(is) {
  busy = is
  for (const button of buttons) button.setAttribute('aria-disabled', String(is))
  if (!is) document.body.dataset.done = done++
}

// press presses the given number of times at once, and waits for the answers.
function press(times, fault, at = sides) {
  setText('#pay b', 'Try again')
  const all = []
  for (let i = 0; i < times; i++) {
    order.presses++
    for (const side of at) all.push(pay(side, order.presses, fault))
  }
  return Promise.allSettled(all) // the list shows a press without an answer
}

function pay(side, number, fault) {
  const url = `shop/${side}/payments`
  const payment = { purchase: order.key, amount: 4200 }
  const send = attempts(side, number, fault)
  if (side === 'with') return payOnce(url, payment, { key: order.key, send })
  const headers = { 'Content-Type': 'application/json', 'Idempotency-Key': order.key }
  return send(url, { method: 'POST', headers, body: JSON.stringify(payment) })
}

// attempts returns a fetch function for the attempts of a press. The function shows each result. The first attempt has the fault.
function attempts(side, number, fault) {
  let lost, breaks = 0
  return async (url, init) => {
    const headers = fault ? { ...init.headers, 'Checkout-Fault': fault } : init.headers
    fault = undefined
    try {
      const response = await fetch(url, { ...init, headers })
      showAnswer(side, number, response, await response.clone().text())
      return response
    } catch (error) {
      lost?.remove()
      lost = show(side, number, 'lost', 'No answer', 'the connection broke' + (++breaks > 1 ? ` ${times(breaks)}` : ''))
      throw error
    }
  }
}

function showAnswer(side, number, { status, statusText, headers }, text) {
  const line = `${status} ${statusText}`
  if (status !== 201) {
    const problem = headers.get('Content-Type') === 'application/problem+json'
    return show(side, number, 'refused', line, problem ? JSON.parse(text).title : 'try again')
  }
  const { receipt, operation } = JSON.parse(text)
  const replayed = headers.get('Idempotent-Replayed') === 'true'
  order[side].answers++
  order[side].receipts.add(receipt)
  return show(side, number, replayed ? 'replayed' : 'new', line, replayed ? 'replayed' : 'new charge', receipt, operation)
}

// show adds an answer to the list of a side.
function show(side, number, kind, status, what, receipt, operation) {
  const item = document.getElementById('answer').content.cloneNode(true).querySelector('li')
  item.value = number
  item.className = kind
  item.querySelector('.status').textContent = status
  item.querySelector('.what').textContent = what
  const detail = item.querySelector('.detail')
  if (receipt) detail.textContent = `receipt ${receipt}`
  if (operation) {
    detail.textContent += `, operation ${operation.slice(0, 8)}…`
    detail.title = operation
  }
  document.querySelector(`#${side} .answers`).prepend(item)
  return item
}

// killServer has the server killed as soon as the server holds the answers of both sides, and waits for the next start.
async function killServer() {
  await fetch('kill?held=2', { method: 'POST' })
}

async function showLedger() {
  const asked = order
  let ledger
  try {
    ledger = await (await fetch(`ledger?purchase=${asked.key}`)).json()
  } catch {
    return setText('#server', 'The program has ended. Start it again, and load this page.')
  }
  if (asked !== order) return
  for (const side of sides) {
    order[side].charges = ledger[side].charges
    setText(`#${side} .charges`, String(ledger[side].charges))
    setText(`#${side} .total`, (ledger[side].total / 100).toFixed(2))
  }
  showServer(ledger.server)
}

function showServer({ running, deaths }) {
  document.getElementById('server').classList.toggle('dead', !running)
  if (!running) return setText('#server', 'The server was killed. It starts again in a moment.')
  const since = deaths === 0 ? '' : ` It was killed ${times(deaths)} and started again.`
  setText('#server', 'The server is running.' + since)
}

// tell shows a sentence with the result of each side.
function tell() {
  for (const side of sides) {
    document.getElementById(side).dataset.is = judgement(order[side])
    setText(`#${side} .verdict`, sentence(order[side], side))
  }
}

function judgement({ charges, answers }) {
  if (charges > 1) return 'wrong'
  if (charges === 0) return 'idle'
  return answers === 0 ? 'unsure' : 'right'
}

function sentence({ charges, answers, receipts }, side) {
  if (charges === 0) return answers === 0 ? 'Nothing was charged yet.' : 'Nothing was charged.'
  if (charges > 1) return `The customer was charged ${times(charges)} for one order.`
  if (answers === 0) {
    const risk = side === 'with' ? 'Trying again is safe.' : 'Trying again will charge again.'
    return `The customer was charged once, and does not know it. ${risk}`
  }
  if (answers === 1) return 'The customer was charged once, and got the receipt.'
  const same = receipts.size === 1 ? 'the same receipt' : `${receipts.size} different receipts,`
  return `The customer was charged once, and got ${same} ${times(answers)}.`
}

function times(n) {
  return ['never', 'once', 'twice'][n] ?? `${n} times`
}

function startOver() {
  order = newOrder()
  setText('#pay b', 'Pay 42.00')
  for (const list of document.querySelectorAll('.answers')) list.replaceChildren()
}

// setText writes only changed texts, because screen readers read every written text out.
function setText(selector, text) {
  const element = document.querySelector(selector)
  if (element.textContent !== text) element.textContent = text
}

await showLedger()
setBusy(false)
if (pending()) act(() => press(1, undefined, ['with']))
