// The same crawl with spider, by its Node package: a Website for each host, a hundred of them at once.
const fs = require('node:fs')
const path = require('node:path')

const [folder, seeds, output] = process.argv.slice(2)
const { Website } = require(path.join(folder, 'node_modules', '@spider-rs', 'spider-rs'))

const waiting = fs.readFileSync(seeds, 'utf8').split('\n').filter(Boolean)
const file = fs.openSync(output, 'w')

// Its own pageTitle parses the page a second time; the package's README advises against it for speed.
const TITLE = /<title[^>]*>([^<]*)/i
let stored = 0
let found = 0

const onPage = (error, page) => {
  if (error) throw error
  const title = TITLE.exec(page.content)?.[1] ?? ''
  fs.writeSync(file, JSON.stringify({ url: page.url, status: page.statusCode, title }) + '\n')
  stored += 1
}

const work = async () => {
  while (waiting.length) {
    const website = new Website(waiting.pop()).withRespectRobotsTxt(false).withDepth(0).build()
    await website.crawl(onPage)
    found += website.size
  }
}

// Events may come after the end of their crawl; and the process does not end by itself where there were several.
const end = (left) => (stored >= found || !left ? process.exit(0) : setTimeout(end, 20, left - 1))

Promise.all(Array.from({ length: 100 }, work)).then(() => end(250))
