// Returns what keeps people from using the page. What changes on it is to be read out.
(readOut) => {
  const faults = []
  const name = (e) => `${e.tagName}#${e.id}.${e.className} "${e.textContent.trim().slice(0, 30)}"`

  const root = document.documentElement
  if (root.scrollWidth > root.clientWidth) faults.push(`the page is ${root.scrollWidth} wide, on ${root.clientWidth}`)
  if (root.lang !== 'en') faults.push('the page has no language')
  if (document.querySelectorAll('h1').length !== 1) faults.push('the page has not one heading')
  for (const selector of readOut ?? []) {
    if (!document.querySelector(selector)) faults.push(`${selector} is not read out`)
  }
  for (const e of document.querySelectorAll('section')) {
    if (!document.getElementById(e.getAttribute('aria-labelledby'))?.textContent) faults.push(`${name(e)} has no label`)
  }
  for (const e of document.querySelectorAll('[onclick], [tabindex], [role=button]')) faults.push(`${name(e)} is no button`)
  for (const e of document.querySelectorAll('button')) {
    const box = e.getBoundingClientRect()
    if (box.width < 44 || box.height < 44) faults.push(`${name(e)} is ${box.width} by ${box.height}`)
    if (!e.textContent.trim()) faults.push(`${name(e)} has no name`)
  }

  for (const e of document.querySelectorAll('input:not([type=hidden]), textarea')) {
    if (!e.labels[0]?.textContent.trim()) faults.push(`${name(e)} has no label`)
  }
  for (const e of document.querySelectorAll('th')) if (!e.scope) faults.push(`${name(e)} has no scope`)

  const channels = (color) => (color.match(/[\d.]+/g) ?? []).map(Number)
  const luminance = (color) => {
    const [r, g, b] = channels(color).map((c) => {
      c /= 255
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4
    })
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor
      if (channels(color)[3] !== 0) return color
    }
    return 'rgb(255, 255, 255)'
  }
  const ratio = (a, b) => {
    const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y)
    return (light + 0.05) / (dark + 0.05)
  }
  for (const e of document.querySelectorAll('body *')) {
    const hasText = [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim())
    if (!hasText || e.closest('template, noscript') || !e.getClientRects().length) continue
    for (const pseudo of [null, '::before', '::marker']) {
      const contrast = ratio(getComputedStyle(e, pseudo).color, ground(e))
      if (contrast < 4.5) faults.push(`${name(e)}${pseudo ?? ''} has contrast ${contrast.toFixed(2)}`)
    }
  }
  return faults
}
