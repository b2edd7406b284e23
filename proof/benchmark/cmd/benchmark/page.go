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

// files returns the content of the page and of its plot, by name.
func (r *results) files() map[string]string {
	var p page
	p.text(head)
	p.table([]string{"", ""}, append(r.machine, []string{"Rounds", strconv.Itoa(r.rounds)}))
	p.text(overHTTP)
	p.requests(r.compared)
	p.text("Left out by a subject that stands beside the library:")
	p.lacks(r.compared)
	p.text(growth)
	p.growth(r)
	p.text(counted)
	p.counts(r.counts)
	return map[string]string{"README.md": p.String(), "cost.svg": plotCost(r.compared)}
}

const head = `# Benchmarks

This page shows what each store costs: latency, throughput, bytes, and how they grow. The page is written by

    go run ./proof/benchmark/cmd/benchmark

on private servers that the command starts. A profile of one path:

    go test ./proof/benchmark -run '^$' -bench Request/redis/first -cpuprofile cpu.out`

const overHTTP = `## Over HTTP

![Processor time of a request over HTTP, beside the least](cost.svg)

A server and clients of net/http on loopback. Requests have 256 B and answers 200 B. Redis, SQLite, PostgreSQL and MariaDB wait
for the disk before they acknowledge a record (` + "`appendfsync always`, `fsync`, `innodb_flush_log_at_trx_commit=1`" + `). Clients and
servers share the machine.

A *refusal* answers a key that was sent before with another body. *The least* is the least work that keeps the contract,
written by hand: in Redis a ` + "`SET NX GET`" + `, and a script that compares a token and sets the answer. Processor time is that of
clients, server and store together, with 16 clients. The bold figure compares it with the first row of the same request: the
median of the ratios of two short batches that ran in the same round. fiber has a server of its own, fasthttp, which takes less
than that of net/http whatever it serves: the row of fiber without a key says how much.`

const growth = `## Growth

The command asks each store directly, without HTTP. *First* is a claim and its completion with an answer of 200 B, two header
fields and random bytes that no database can compress. *Replay* asks for a completed key. A latency is p50 and p99 of
1,000 requests, one after the other. A record takes memory in the process or in Redis; disk in SQLite, PostgreSQL and
MariaDB, with indexes, without the log; and in DynamoDB the bytes that the service bills.`

const counted = `## Limits

What can be counted does not depend on other work on the machine: allocations of the whole process, round trips, WAL.
TestGates fails above a limit. The service of DynamoDB was never reached: [minidyn](https://github.com/truora/minidyn), an
emulator, stands for it.`

// page is Markdown in the making.
type page struct{ strings.Builder }

func (p *page) text(s string) { p.WriteString(s + "\n\n") }

func (p *page) table(head []string, rows [][]string) {
	fmt.Fprintf(p, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, row := range rows {
		fmt.Fprintf(p, "| %s |\n", strings.Join(row, " | "))
	}
	p.WriteString("\n")
}

// requests writes a table for each store.
func (p *page) requests(compared []comparison) {
	var rows [][]string
	for i, c := range compared {
		for subject, s := range c.subjects {
			row := []string{requestName(c.path), s.Name}
			for _, clients := range []bm.Comparison{c.alone, c.among} {
				row = append(row, ms(clients.Latency(subject, 0.5)), ms(clients.Latency(subject, 0.99)),
					digits(clients.PerSecond(subject)))
			}
			var times []time.Duration
			for _, cost := range c.among[subject] {
				times = append(times, cost.Processor)
			}
			slices.Sort(times)
			rows = append(rows, append(row, ms(times[len(times)/2]), "**"+ratio(c.among.Ratio(subject, 0))+"**"))
		}
		if i+1 == len(compared) || compared[i+1].store != c.store {
			p.text("### " + string(c.store))
			p.table([]string{"request", "subject", "1 client: p50", "p99", "requests a second",
				"16 clients: p50", "p99", "requests a second", "processor time", "ratio"}, rows)
			rows = nil
		}
	}
}

func requestName(path bm.Path) string {
	if path == bm.Reuse {
		return "refusal"
	}
	return string(path)
}

func (p *page) lacks(compared []comparison) {
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
	p.table([]string{"", "leaves out"}, rows)
}

func (p *page) growth(r *results) {
	var rows [][]string
	for _, s := range r.sizes {
		row := []string{string(s.store), digits(float64(s.records)), humanize.Comma(s.bytes), "–", "–"}
		if s.store != bm.InDynamoDB {
			row[3], row[4] = ms(s.first.median)+", "+ms(s.first.p99), ms(s.replay.median)+", "+ms(s.replay.p99)
		}
		rows = append(rows, row)
	}
	p.table([]string{"store", "records", "bytes of a record", "first", "replay"}, rows)
	p.text("Each of so many workers has a connection and a key of its own. A figure counts one second.")
	rows = nil
	for _, l := range r.rates {
		rows = append(rows, []string{string(l.store), strconv.Itoa(l.workers), digits(l.first), digits(l.replay)})
	}
	p.table([]string{"store", "connections", "first executions a second", "replays a second"}, rows)
}

func (p *page) counts(counts []count) {
	var rows [][]string
	for _, c := range counts {
		subject := c.limit.Subject.Name + ", " + c.limit.Scenario.String()
		rows = append(rows, []string{subject, c.limit.String(), humanize.Comma(int64(math.Round(c.value)))})
	}
	p.table([]string{"", "limit", "counted"}, rows)
}

// machine says on what the figures depend.
func machine() [][]string {
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
			field("/proc/cpuinfo", `model name\s*: (.*)`), field("/proc/meminfo", `MemTotal:\s*(.*)`))},
		{"Load average before the run", field("/proc/loadavg", `(\S+)`)},
		{"Software", runtime.Version() + ", " + strings.Join(modules, ", ")},
	}
}

// field returns what an expression finds in a file of Linux, or "unknown".
func field(file, expression string) string {
	text, _ := os.ReadFile(file)
	found := regexp.MustCompile(expression).FindSubmatch(text)
	if found == nil {
		return "unknown"
	}
	return string(found[1])
}

// ms has three significant digits.
func ms(d time.Duration) string { return ratio(d.Seconds()*1e3) + " ms" }

// ratio has three significant digits.
func ratio(x float64) string {
	decimals := 2
	if x > 0 {
		decimals = max(0, 2-int(math.Floor(math.Log10(x))))
	}
	return strconv.FormatFloat(x, 'f', decimals, 64)
}

// digits has three significant digits, and all before the point.
func digits(x float64) string {
	unit := 1.0
	for x >= 1000*unit {
		unit *= 10
	}
	return humanize.Comma(int64(math.Round(x/unit) * unit))
}
