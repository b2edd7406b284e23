// Pays by sendOnce at one URL after the other, as a page does, and prints what came of each. The arguments are the path of the
// module, how many seconds an attempt may take in place of what the module allows it, and the URLs. Pauses are noted, and not made.
import { readFileSync } from 'node:fs'

const [path, patience, ...urls] = process.argv.slice(2)
const stored = {}
let pauses, bounds
globalThis.document = {}
globalThis.sessionStorage = {
  getItem: (name) => stored[name] ?? null,
  setItem: (name, value) => { stored[name] = value },
  removeItem: (name) => { delete stored[name] },
}
globalThis.noted = {
  setTimeout(resume, milliseconds) {
    pauses.push(milliseconds / 1000)
    setTimeout(resume)
  },
  timeout(milliseconds) {
    bounds.push(milliseconds / 1000)
    return AbortSignal.timeout(patience * 1000)
  },
  any: (signals) => AbortSignal.any(signals),
}
const ofThePage = 'const { setTimeout } = noted, AbortSignal = noted;'
const { sendOnce } = await import('data:text/javascript,' + encodeURIComponent(ofThePage + readFileSync(path, 'utf8')))
for (const url of urls) {
  pauses = []
  bounds = []
  const { status } = await sendOnce(url, { amount: 4200 })
  console.log(JSON.stringify({ status, pauses, bounds }))
}
