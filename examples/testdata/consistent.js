// Watches the page of the checkout from its first moment: every 50 ms, and whenever the page has changed. Collects in
// window.contradictions where a sentence or a list first contradicts a number.
window.contradictions = []
window.looks = 0

addEventListener('DOMContentLoaded', () => {
  setInterval(look, 50)
  const everything = { subtree: true, childList: true, characterData: true, attributes: true }
  new MutationObserver(look).observe(document.body, everything)
})

function look() {
  window.looks++
  const shown = { without: readSide('without'), with: readSide('with') }
  const require = (holds, rule, side) => {
    if (!holds && window.contradictions.length < 3) window.contradictions.push(`${rule}: ${JSON.stringify(side ?? shown)}`)
  }
  for (const side of Object.values(shown)) requireSide(side, require)

  const rows = document.querySelectorAll('.presses li').length
  require((read('#pay b') === 'Pay €42.00') === (rows === 0), 'the button says whether the customer has pressed')
  const dead = document.querySelector('#server').classList.contains('dead')
  require(dead === read('#server').startsWith('The server was killed'), 'the colour of the server')
  require(!read('.operator') || /operator has to look/.test(shown.with.verdict), 'an operator is needed')
  const end = read('#scene').match(/^The end.*middleware: (\d+) charges?, €([\d.]+)\. With it: (\d+) charges?, €([\d.]+)\./)
  if (end) {
    require(Number(end[2]) === 42 * end[1] && Number(end[4]) === 42 * end[3], `the sums of ${end[0]}`)
    require(end[1] >= shown.without.charges && end[3] >= shown.with.charges, `the charges of ${end[0]}`)
  }
}

function requireSide(side, require) {
  const { charges, verdict, receipts, kinds } = side
  const says = (pattern) => pattern.test(verdict)
  const different = new Set(receipts).size
  const [, count] = verdict.match(/charged (once|twice|\d+ times)/) ?? []
  require(side.total === 42 * charges, 'charges and total', side)
  require(says(/Nothing was charged/) === (charges === 0), 'nothing was charged', side)
  require((count ? parseTimes(count) : 0) === charges, 'how often the customer was charged', side)
  require(says(/too much/) === (charges > 1) && side.excess === Math.max(0, side.total - 42), 'too much', side)
  require((side.judgement === 'wrong') === (charges > 1), 'the colour of a wrong side', side)
  require(side.judgement !== 'right' || charges === 1, 'the colour of a right side', side)
  require(different <= charges, 'no receipt without a charge', side)
  if (says(/does not know it|waits for|cannot know it/)) require(receipts.length === 0, 'the customer has no receipt', side)
  if (says(/at work|waits for/)) require(kinds.includes('waiting'), 'a press waits', side)
  if (says(/got the receipt/)) require(receipts.length === 1, 'one receipt', side)
  const [, same] = verdict.match(/the same receipt (twice|\d+ times)/) ?? []
  if (same) require(different === 1 && receipts.length === parseTimes(same), 'the same receipts', side)
  require(side.numbers.every((n, i, all) => i === 0 || n === all[i - 1] - 1), 'the order of the list', side)
}

function readSide(id) {
  const rows = [...document.querySelectorAll(`#${id} .presses li`)]
  const verdict = read(`#${id} .verdict`)
  return {
    id, verdict, charges: Number(read(`#${id} .charges`)), total: parseMoney(read(`#${id} .total`)),
    excess: parseMoney(verdict.match(/€[\d.,]+ too much/)?.[0] ?? '€0'),
    judgement: document.getElementById(id).dataset.is,
    kinds: rows.map((row) => row.className),
    numbers: rows.map((row) => parseInt(row.querySelector('.number').textContent)),
    receipts: rows.map((row) => row.querySelector('.receipt').textContent).filter(Boolean),
  }
}

function read(selector) {
  return document.querySelector(selector).textContent.trim()
}

function parseMoney(text) {
  return Number(text.match(/€([\d.,]+)/)[1].replace(',', ''))
}

function parseTimes(text) {
  return { once: 1, twice: 2 }[text] ?? parseInt(text)
}
