// The page plays the customer: each press goes to the shop on both sides, with the key of the order.

const sides = ['without', 'with']
const buttons = document.querySelectorAll('button')
let order = newOrder()
let busy = true
let done = 0 // actions

function newOrder() {
  const bytes = crypto.getRandomValues(new Uint8Array(16))
  const key = Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('')
  return { key, presses: 0, without: newSide(), with: newSide() }
}

function newSide() {
  return { charges: 0, answers: 0, lost: 0, refused: 0, receipts: new Set() }
}

on('pay', () => press(1))
on('lose', () => press(1, 'lose'))
on('ten', () => press(10))
on('stop', () => Promise.all([press(1, 'hold'), killServer()]))
on('fresh', startOver)

// on runs an action when a button is pressed, one at a time. The buttons stay in the order of the Tab key meanwhile.
function on(id, action) {
  document.getElementById(id).addEventListener('click', async () => {
    if (busy) return
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
  })
}

function setBusy(is) {
  busy = is
  for (const button of buttons) button.setAttribute('aria-disabled', String(is))
  if (!is) document.body.dataset.done = done++
}

// press presses so many times at once, on both sides, and waits for what comes back.
function press(times, fault) {
  document.querySelector('#pay b').textContent = 'Try again'
  const all = []
  for (let i = 0; i < times; i++) {
    order.presses++
    for (const side of sides) all.push(pay(side, order.presses, fault))
  }
  return Promise.all(all)
}

async function pay(side, number, fault) {
  const headers = { 'Content-Type': 'application/json', 'Idempotency-Key': order.key }
  if (fault) headers['Checkout-Fault'] = fault
  const body = JSON.stringify({ purchase: order.key, amount: 4200 })
  let response, text
  try {
    response = await fetch(`shop/${side}/payments`, { method: 'POST', headers, body })
    text = await response.text()
  } catch {
    order[side].lost++
    return show(side, number, 'lost', 'No answer', 'the connection broke')
  }
  const status = `${response.status} ${response.statusText}`
  if (response.status !== 201) {
    order[side].refused++
    const problem = response.headers.get('Content-Type') === 'application/problem+json'
    return show(side, number, 'refused', status, problem ? JSON.parse(text).title : 'try again')
  }
  const { receipt, operation } = JSON.parse(text)
  const replayed = response.headers.get('Idempotent-Replayed') === 'true'
  order[side].answers++
  order[side].receipts.add(receipt)
  show(side, number, replayed ? 'replayed' : 'new', status, replayed ? 'replayed' : 'new charge', receipt, operation)
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
}

// killServer has the server killed when it holds the answers of both sides, and waits until it runs again.
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

// tell says in a sentence what has happened on each side.
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

// setText leaves alone what does not change, so that it is not read out again.
function setText(selector, text) {
  const element = document.querySelector(selector)
  if (element.textContent !== text) element.textContent = text
}

await showLedger()
setBusy(false)
