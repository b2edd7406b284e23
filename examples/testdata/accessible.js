// Returns the faults by which the page shuts people out, and that axe does not look for. The page must announce changes of the
// elements in liveRegions.
(liveRegions) => {
  const faults = []
  const describe = (e) => `${e.tagName}#${e.id}.${e.className} "${e.textContent.trim().slice(0, 30)}"`

  const root = document.documentElement
  if (root.scrollWidth > root.clientWidth) faults.push(`the page is ${root.scrollWidth} wide, on ${root.clientWidth}`)
  for (const selector of liveRegions ?? []) {
    if (!document.querySelector(selector)) faults.push(`${selector} is not announced`)
  }
  for (const e of document.querySelectorAll('section')) {
    if (!document.getElementById(e.getAttribute('aria-labelledby'))?.textContent) faults.push(`${describe(e)} has no label`)
  }
  for (const e of document.querySelectorAll('[onclick], [tabindex], [role=button]')) faults.push(`${describe(e)} is no button`)
  for (const e of document.querySelectorAll('button, summary')) {
    const box = e.getBoundingClientRect()
    if (e.checkVisibility() && (box.width < 44 || box.height < 44)) faults.push(`${describe(e)} is ${box.width} by ${box.height}`)
  }
  for (const e of document.querySelectorAll('small')) { // explanations
    if (!e.closest('details:not([open])') && !e.checkVisibility()) faults.push(`${describe(e)} is hidden`)
  }
  for (const e of document.querySelectorAll('[placeholder]')) faults.push(`${describe(e)} has text that reads like a value`)

  // Contrast of the text that style sheets add
  const channels = (color) => (color.match(/[\d.]+/g) ?? []).map(Number)
  const luminance = (color) => {
    const [r, g, b] = channels(color).map((c) => {
      c /= 255
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4
    })
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const findBackground = (e) => {
    for (; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor
      if (channels(color)[3] !== 0) return color
    }
    return 'rgb(255, 255, 255)'
  }
  const contrastOf = (a, b) => {
    const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y)
    return (light + 0.05) / (dark + 0.05)
  }
  for (const e of document.querySelectorAll('body *')) {
    if (!e.checkVisibility()) continue
    for (const pseudo of ['::before', '::after', '::marker']) {
      const { content, color } = getComputedStyle(e, pseudo)
      if (['none', '""'].includes(content) || (content === 'normal' && getComputedStyle(e).display !== 'list-item')) continue
      const contrast = contrastOf(color, findBackground(e))
      if (contrast < 4.5) faults.push(`${describe(e)}${pseudo} has contrast ${contrast.toFixed(2)}`)
    }
  }
  return faults
}
