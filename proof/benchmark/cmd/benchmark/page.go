package main

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	bm "github.com/idempotency-go/idempotency/proof/benchmark"
)

// renderFiles returns the content of the page and of the plots, by file name.
func (r *results) renderFiles() map[string]string {
	var p page
	p.writeText(head)
	p.writeTable([]string{"", ""}, append(r.machineRows, []string{"Rounds", strconv.Itoa(r.rounds)}))
	p.writeText(overHTTP)
	p.writeRequests(r.comparisons)
	p.writeText(distance)
	p.writeRequests(r.distant)
	p.writeText("Left out by a subject that stands beside the library:")
	p.writeLacks(r.comparisons)
	p.writeText(growth)
	p.writeGrowth(r)
	p.writeText(counted)
	p.writeCounts(r.limitCounts)
	return map[string]string{"README.md": p.String(), "cost.svg": plotCost(r.comparisons), "latency.svg": plotLatency(slices.Concat(r.comparisons, r.distant))}
}

const head = `# Benchmarks

This page shows what each store costs: latency, throughput, bytes, and how they grow. The page is written by

    go run ./proof/benchmark/cmd/benchmark

on private servers that the command starts. A profile of one path:

    go test ./proof/benchmark -run '^$' -bench Request/redis/first -cpuprofile cpu.out`

const overHTTP = `## Over HTTP

![Latency of a request over HTTP, in milliseconds](latency.svg)

![Processor time of a request over HTTP, beside the least](cost.svg)

A server and clients of net/http on loopback. Requests have 256 B and answers 200 B. Redis, SQLite, PostgreSQL and MariaDB wait
for the disk before they acknowledge a record (` + "`appendfsync always`, `fsync`, `innodb_flush_log_at_trx_commit=1`" + `). Clients and
servers share the machine.

A *refusal* answers a key that was sent before with another body. *The least* is the least work that keeps the contract,
written by hand: in Redis a ` + "`SET NX GET`" + `, and a script that compares a token and sets the answer. Processor time is that of
clients, server and store together, with 16 clients. The bold figure compares it with the first row of the same request: the
median of the ratios of two short batches that ran in the same round. fiber has a server of its own, fasthttp, which takes less
than that of net/http whatever it serves: the row of fiber without a key says how much.

In Redis and PostgreSQL, the library takes the round trips of the least. The rest of its time is for what the least leaves out:
users and paths are told apart, the header before and after the handler is compared, the handler's context outlives the client,
and a timer renews the lease.

With a row, both take five round trips. The work by hand commits once. The library commits three times: the claim before the
handler runs, the row with the result of its step, and the answer before it is sent. Between these commits, the library holds no
connection and no lock.`

const distance = `## With a network

The replies of Redis and PostgreSQL arrive one millisecond later, as from another machine of the same region. A first execution
waits for two replies, and for five with a row. A replay waits for one.`

const growth = `## Growth

The command asks each store directly, without HTTP. *First* is a claim and its completion with an answer of 200 B, two header
fields and random bytes that no database can compress. *Replay* asks for a completed key. A latency is p50 and p99 of
1,000 requests, one after the other. A record takes memory in the process or in Redis; disk in SQLite, PostgreSQL and
MariaDB, with indexes, without the log; and in DynamoDB the bytes that the service bills.`

const counted = `## Limits

What can be counted does not depend on other work on the machine: allocations of the whole process, round trips, WAL. A request
has 256 B and an answer 200 B, unless the row says otherwise. TestGates fails above a limit. The service of DynamoDB was never
reached: [minidyn](https://github.com/truora/minidyn), an emulator, stands for it.`

// page builds the Markdown of the page.
type page struct{ strings.Builder }

func (p *page) writeText(s string) { p.WriteString(s + "\n\n") }

func (p *page) writeTable(head []string, rows [][]string) {
	fmt.Fprintf(p, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, row := range rows {
		fmt.Fprintf(p, "| %s |\n", strings.Join(row, " | "))
	}
	p.WriteString("\n")
}

// writeRequests writes a table for each store.
func (p *page) writeRequests(compared []comparison) {
	var rows [][]string
	for i, c := range compared {
		for subject, s := range c.subjects {
			row := []string{requestName(c.path), nameInGroup(s)}
			for _, clients := range []bm.Comparison{c.withOneClient, c.withManyClients} {
				median, p99 := clients.Latency(subject, 0.5), clients.Latency(subject, 0.99)
				row = append(row, formatMilliseconds(median), formatMilliseconds(p99), formatCount(clients.PerSecond(subject)))
			}
			var times []time.Duration
			for _, cost := range c.withManyClients[subject] {
				times = append(times, cost.Processor)
			}
			slices.Sort(times)
			ratio := formatRatio(c.withManyClients.Ratio(subject, 0))
			rows = append(rows, append(row, formatMilliseconds(times[len(times)/2]), "**"+ratio+"**"))
		}
		if i+1 == len(compared) || compared[i+1].store != c.store {
			p.writeText("### " + c.heading())
			p.writeTable([]string{"request", "subject", "1 client: p50, ms", "p99, ms", "requests/s",
				"16 clients: p50, ms", "p99, ms", "requests/s", "processor time, ms", "ratio"}, rows)
			rows = nil
		}
	}
}

// heading names the store, and the network if there is one.
func (c comparison) heading() string {
	if c.networkDelay == 0 {
		return string(c.store)
	}
	return fmt.Sprintf("%s, %d ms away", c.store, c.networkDelay.Milliseconds())
}

// nameInGroup returns the name of a subject without the database, which the group names.
func nameInGroup(s *bm.Subject) string {
	database, _, _ := strings.Cut(string(s.Store), ",")
	return strings.Replace(s.Name, ", "+database, "", 1)
}

func requestName(path bm.Path) string {
	if path == bm.Reuse {
		return "refusal"
	}
	return string(path)
}

// writeLacks writes a table of the features that subjects leave out.
func (p *page) writeLacks(compared []comparison) {
	var rows [][]string
	seen := make(map[*bm.Subject]bool)
	for _, c := range compared {
		for _, s := range c.subjects {
			if s.Lacks != "" && !seen[s] {
				rows = append(rows, []string{s.Name, s.Lacks})
			}
			seen[s] = true
		}
	}
	p.writeTable([]string{"", "leaves out"}, rows)
}

func (p *page) writeGrowth(r *results) {
	var rows [][]string
	for _, s := range r.storeSizes {
		row := []string{string(s.store), formatCount(float64(s.recordCount)), humanize.Comma(s.bytesPerRecord), "–", "–"}
		if s.store != bm.InDynamoDB {
			row[3], row[4] = formatLatency(s.firstLatency), formatLatency(s.replayLatency)
		}
		rows = append(rows, row)
	}
	p.writeTable([]string{"store", "records", "bytes of a record", "first: p50, p99, ms", "replay: p50, p99, ms"}, rows)
	p.writeText("Requests in one second, by 1 to 256 workers. Each has a connection and a key of its own.")
	p.writeRates(r.rates)
	p.writeText("A log line names an operation by its ID. The record is found by one request, among copies of one record:")
	rows = nil
	for _, l := range r.lookups {
		rows = append(rows, []string{string(l.store), humanize.Comma(int64(l.recordCount)), formatLatency(l.latency)})
	}
	p.writeTable([]string{"store", "records", "found: p50, p99, ms"}, rows)
}

// writeRates writes two rows for each store, with a column for each number of workers.
func (p *page) writeRates(rates []rate) {
	head := []string{"store", "request"}
	var rows [][]string
	for i, l := range rates {
		if i == 0 || rates[i-1].store != l.store {
			rows = append(rows, []string{string(l.store), "first"}, []string{string(l.store), "replay"})
		}
		if len(rows) == 2 {
			head = append(head, strconv.Itoa(l.workerCount))
		}
		first, replay := &rows[len(rows)-2], &rows[len(rows)-1]
		*first = append(*first, formatCount(l.firstsPerSecond))
		*replay = append(*replay, formatCount(l.replaysPerSecond))
	}
	p.writeTable(head, rows)
}

func (p *page) writeCounts(counts []count) {
	var rows [][]string
	for _, c := range counts {
		subject := c.limit.Subject.Name + ", " + strings.TrimSuffix(c.limit.Scenario.String(), ", "+bm.Small.String())
		bound := humanize.Comma(int64(c.limit.Bound)) + " " + string(c.limit.Of)
		rows = append(rows, []string{subject, bound, humanize.Comma(int64(math.Round(c.countedValue)))})
	}
	p.writeTable([]string{"", "at most", "counted"}, rows)
}

// describeMachine returns table rows with the date, the machine, the load and the software of the figures.
func describeMachine() [][]string {
	var modules []string
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			name := strings.TrimPrefix(dep.Path, "github.com/")
			if slices.Contains([]string{"gofiber/fiber/v3", "redis/go-redis/v9", "jackc/pgx/v5"}, name) {
				modules = append(modules, name+" "+dep.Version)
			}
		}
	}
	return [][]string{
		{"Date", time.Now().UTC().Format(time.DateOnly)},
		{"Machine", fmt.Sprintf("%d x %s, %s of memory", runtime.NumCPU(),
			findInFile("/proc/cpuinfo", `model name\s*: (.*)`), findInFile("/proc/meminfo", `MemTotal:\s*(.*)`))},
		{"Load average before the run", findInFile("/proc/loadavg", `(\S+)`)},
		{"Software", runtime.Version() + ", " + strings.Join(modules, ", ")},
	}
}

// findInFile returns the first group of expression in a file of Linux, or "unknown".
func findInFile(file, expression string) string {
	text, _ := os.ReadFile(file)
	found := regexp.MustCompile(expression).FindSubmatch(text)
	if found == nil {
		return "unknown"
	}
	return string(found[1])
}

// formatLatency returns the median and the 99th percentile.
func formatLatency(l latency) string {
	return formatMilliseconds(l.median) + ", " + formatMilliseconds(l.p99)
}

// formatMilliseconds returns d in milliseconds, with three significant digits.
func formatMilliseconds(d time.Duration) string { return formatRatio(d.Seconds() * 1e3) }

// formatRatio returns x with three significant digits.
func formatRatio(x float64) string {
	decimals := 2
	if x > 0 {
		decimals = max(0, 2-int(math.Floor(math.Log10(x))))
	}
	return strconv.FormatFloat(x, 'f', decimals, 64)
}

// formatCount rounds x to an integer with three significant digits.
func formatCount(x float64) string {
	unit := 1.0
	for x >= 1000*unit {
		unit *= 10
	}
	return humanize.Comma(int64(math.Round(x/unit) * unit))
}
