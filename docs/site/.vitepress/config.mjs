// The site has the README, the pages of docs and the READMEs of modules, as they are in the repository.
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'

const root = path.resolve(import.meta.dirname, '../../..')
const source = 'https://github.com/idempotency-go/idempotency/blob/main/'

// pageAddress returns the address of a file on the site, or undefined if the site does not have the file.
function pageAddress(file) {
  if (file === 'README.md') return '/'
  const match = file.match(/^(?:docs\/([^/]+)\.md|((?:stores|adapters|cmd)\/[^/]+|examples(?:\/regions)?|proof\/(?:benchmark\/results|guarantees))\/README\.md)$/)
  return match && '/' + (match[1] ?? match[2])
}

// readAsGitHub leads links between files to pages of the site, and all other relative links to the repository. Vue must not
// interpret code.
function readAsGitHub(md) {
  md.renderer.rules.code_inline = (tokens, i) => `<code v-pre>${md.utils.escapeHtml(tokens[i].content)}</code>`
  md.core.ruler.push('links', ({ tokens, env }) => {
    const folder = path.dirname(path.relative(root, env.path))
    for (const token of tokens.flatMap((block) => block.children ?? [])) {
      const href = token.type === 'link_open' && token.attrGet('href')
      if (!href || /^(?:[a-z]+:|#|\/)/.test(href)) continue
      const [file, heading] = href.split('#')
      const target = path.join(folder, file)
      const address = pageAddress(target)
      token.attrSet('href', (address ?? source + target) + (heading ? '#' + heading : ''))
    }
  })
}

// resolveHere resolves an import of a page, whose file lies above node_modules.
const resolveHere = (name) => ({ find: new RegExp(`^${name}$`), replacement: fileURLToPath(import.meta.resolve(name)) })

const page = (text, name) => ({ text, link: '/' + name })

export default defineConfig({
  title: 'idempotency',
  description: 'Go middleware that makes POST safe to retry',
  base: '/idempotency/',
  srcDir: '../..',
  outDir: './dist',
  cacheDir: './.cache',
  cleanUrls: true,
  rewrites: (file) => {
    const address = pageAddress(file)
    return address ? (address === '/' ? 'index.md' : address.slice(1) + '.md') : file
  },
  srcExclude: ['CHANGELOG.md', 'CONTRIBUTING.md', '.github/**', 'proof/golden/**', 'proof/release/**'],
  markdown: { config: readAsGitHub },
  vite: { resolve: { alias: ['vue', 'vue/server-renderer'].map(resolveHere) } },
  themeConfig: {
    search: { provider: 'local' },
    outline: [2, 3],
    socialLinks: [{ icon: 'github', link: 'https://github.com/idempotency-go/idempotency' }],
    sidebar: [
      { text: 'Begin', items: [
        page('What it is', ''), page('PostgreSQL', 'postgres'), page('Redis', 'redis'), page('Mounting', 'mounting'),
        page('Frameworks', 'frameworks'), page('Users and keys', 'users'), page('Handlers', 'handlers'), page('Steps', 'steps'),
        page('For coding agents', 'coding-agents'),
      ] },
      { text: 'Clients', items: [
        page('Problems', 'problems'), page('Clients of your API', 'clients'), page('Browsers', 'browsers'),
        page('Agents', 'agents'), page('Uploads and streams', 'bodies'),
      ] },
      { text: 'Stores', items: [
        page('Which store', 'stores'), page('pgxstore', 'stores/pgxstore'), page('mysqlstore', 'stores/mysqlstore'),
        page('sqlitestore', 'stores/sqlitestore'), page('dynamodbstore', 'stores/dynamodbstore'), page('A store of your own', 'store'),
      ] },
      { text: 'Production', items: [
        page('Operating', 'operating'), page('Support', 'support'), page('Security', 'security'), page('Proxy', 'proxy'),
        page('Benchmarks', 'proof/benchmark/results'),
      ] },
      { text: 'Decide', items: [
        page('Guarantees', 'guarantees'), page('Probe', 'probe'), page('Comparison', 'comparison'), page('Migrating', 'migrating'), page('Leaving', 'leaving'),
        page('Design', 'design'),
      ] },
    ],
  },
})
