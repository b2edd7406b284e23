package main

import (
	"fmt"
	"strings"
	"time"

	bm "github.com/idempotency-go/idempotency/proof/benchmark"
)

// document is Markdown in the making.
type document struct{ strings.Builder }

func (d *document) paragraph(format string, args ...any) { fmt.Fprintf(d, format+"\n\n", args...) }

// table writes a table, unless there is nothing in it.
func (d *document) table(head []string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(d, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, row := range rows {
		fmt.Fprintf(d, "| %s |\n", strings.Join(row, " | "))
	}
	fmt.Fprintln(d)
}

// document returns the report as Markdown.
func (r *results) document() string {
	d := &document{}
	d.head(r)
	d.served(r)
	d.dynamodb(r)
	d.limits(r)
	d.paragraph("## Without HTTP")
	d.paragraph("These are to find causes by. %s", explained)
	d.comparisons(r.on(bm.InMemory, false), "In memory: time", bm.Elapsed, duration)
	d.comparisons(r.on(bm.InRedis, false), "Redis: processor time of client and server", bm.Processor, duration)
	d.comparisons(r.on(bm.InRedis, false), "Redis: time, and throughput", bm.Elapsed, rate)
	d.paragraph("### In short")
	d.table(r.summary())
	d.paragraph("%s", summaryNote)
	d.paragraph("## Measured elsewhere")
	d.paragraph("%s", measuredElsewhere)
	d.table([]string{"", "Memory: first", "Replay", "Replay of 1 MiB", "Allocations", "Round trips", "Leaves out"},
		elsewhere)
	d.paragraph("%s", idemleaseInRedis)
	d.lacks()
	return d.String()
}

func (d *document) head(r *results) {
	d.paragraph("# Benchmarks")
	d.paragraph("This page is written by")
	d.paragraph("    go run ./proof/benchmark/cmd/report")
	d.paragraph("which measures everything again but what was [measured elsewhere](#measured-elsewhere), on private " +
		"servers that it starts. [Allocations](allocations.md) says what each allocation is for. [Stores on a " +
		"disk](durable.md) compares SQLite, MariaDB, PostgreSQL and Redis. [How cost grows](growth.md) asks for " +
		"millions of records. A profile of a path:")
	d.paragraph("    go test ./proof/benchmark -run '^$' -bench Request/redis/first -cpuprofile cpu.out")
	d.table([]string{"", ""}, [][]string{
		{"Date", time.Now().UTC().Format(time.DateOnly)},
		{"Machine", r.machine.hardware},
		{"Software", r.machine.software()},
		{"Compared", r.machine.modules},
		{"Rounds", fmt.Sprint(r.rounds)},
		{"The run took", r.took.Round(time.Second).String()},
	})
	d.paragraph("Clients, servers and the subjects share the machine over loopback. A ratio is the median of the ratios " +
		"of two short batches that ran in the same round. Processor time is that of the process and of the server " +
		"together, for one request. Every batch checks how often the handler ran, and compares replays byte for byte.")
}

const explained = "The first column is what the others are relative to. Behind a ratio are the quartiles of all rounds, " +
	"and the median of what it is the ratio of."

// served writes what the user pays.
func (d *document) served(r *results) {
	d.paragraph("## Over HTTP")
	d.paragraph("![Processor time over HTTP, beside the least](%s)", plotName)
	d.paragraph("A server and clients of net/http, on loopback, 16 requests at a time, each of them with 256 B, and an "+
		"answer of 200 B: processor time of client, server and store together. fiber has a server of its own, fasthttp, "+
		"which takes less than that of net/http whatever it serves: its row without a key says how much. %s", explained)
	for _, store := range []bm.Store{bm.InMemory, bm.InRedis, bm.InPostgres, bm.RowsInPostgres} {
		d.comparisons(r.on(store, true), string(store), bm.Processor, duration)
	}
}

// dynamodb writes what of an emulated service can be compared with servers.
func (d *document) dynamodb(r *results) {
	d.paragraph("## DynamoDB beside servers")
	d.paragraph("The service was never reached. [minidyn](https://github.com/truora/minidyn) stands for it, an emulator in a " +
		"process of its own, which says nothing of the latency, the throughput or the price of the service. So only what is " +
		"on this side of the connection is compared: the processor time of this process, with that of the SDK, without " +
		"that of the emulator and of the other servers. Round trips and allocations are among the limits below. The units of " +
		"each operation are in [dynamodbstore](../../../stores/dynamodbstore/README.md#what-it-costs).")
	d.comparisons(r.on(bm.InDynamoDB, false), "Processor time of the client's side", bm.ClientSide, duration)
}

// limits writes one row for all limits on the same.
func (d *document) limits(r *results) {
	d.paragraph("## Limits")
	d.paragraph("\"The least\" is the least work that keeps the contract: in Redis a `SET NX GET`, and a script that " +
		"compares a token and sets the answer. Tests hold the library to what can be counted: round trips, allocations " +
		"of the whole process, WAL. The rest are goals.")
	var rows [][]string
	index := make(map[string]int)
	for _, l := range r.limits {
		i, ok := index[title(l)]
		if !ok {
			i = len(rows)
			index[title(l)] = i
			rows = append(rows, []string{title(l), "", "", ""})
		}
		value, ok := r.value(l)
		measured, met := number(value), "yes"
		switch {
		case !ok:
			measured, met = "-", "-"
		case !l.Met(value):
			measured, met = "**"+measured+"**", "**no**"
		}
		for column, text := range []string{l.String(), measured, met} {
			rows[i][column+1] = strings.TrimPrefix(rows[i][column+1]+"; "+text, "; ")
		}
	}
	d.table([]string{"", "Limit", "Measured", "Met"}, rows)
}

// comparisons writes what was compared, by time or processor time.
func (d *document) comparisons(compared []comparison, heading string, by func(bm.Cost) time.Duration,
	show func(time.Duration) string) {
	d.paragraph("### %s", heading)
	var head []string
	var rows [][]string
	for _, c := range compared {
		row := []string{c.scenario.String()}
		if c.scenario.Served { // as all are of which that is said before
			row[0] = string(c.scenario.Path)
		}
		if c.scenario.Valkey {
			row[0] += ", Valkey"
		}
		names := []string{""}
		for i, s := range c.subjects {
			names = append(names, s.Name)
			row = append(row, cell(c, i, by, show))
		}
		if head == nil || strings.Join(head, "") != strings.Join(names, "") {
			d.table(head, rows)
			head, rows = names, nil
		}
		rows = append(rows, row)
	}
	d.table(head, rows)
}

func cell(c comparison, i int, by func(bm.Cost) time.Duration, show func(time.Duration) string) string {
	median := show(c.Median(i, by))
	if i == 0 {
		return "1 · " + median
	}
	ratio := c.Ratio(i, 0, by)
	return fmt.Sprintf("**%s** (%s-%s) · %s", number(ratio.Median), number(ratio.Low), number(ratio.High), median)
}

// lacks says what those that are compared leave out.
func (d *document) lacks() {
	d.paragraph("## What others leave out")
	var rows [][]string
	for _, s := range append([]*bm.Subject{bm.BareHandler, bm.RawRedis, bm.BlindSet}, others...) {
		rows = append(rows, []string{s.Name, s.Lacks})
	}
	d.table([]string{"", "Does less"}, rows)
}

const summaryNote = "Memory: time beside the least in memory. Redis: processor time of client and server, with 16 " +
	"workers, beside the least in Redis. Allocations in memory, round trips to Redis: of a first execution / a replay. " +
	"Requests of 256 B, answers of 200 B."

// summary compares the libraries in a few figures.
func (r *results) summary() (head []string, rows [][]string) {
	head = []string{"", "Memory: first", "Replay", "Replay of 1 MiB", "Redis: first", "Replay", "Allocations",
		"Round trips", "Leaves out"}
	for _, s := range []struct {
		name            string
		memory, inRedis *bm.Subject
		lacks           string
	}{
		{"this library", bm.Memory, bm.Redis, ""},
		{"gofiber/fiber v3", bm.FiberMemory, bm.FiberRedis,
			"fingerprint, scope, lease, token; duplicates in other processes execute"},
	} {
		rows = append(rows, []string{s.name,
			r.beside(s.memory, bm.MemoryLeast, bm.Scenario{Path: bm.First, Work: bm.Small, Workers: 1}, bm.Elapsed),
			r.beside(s.memory, bm.MemoryLeast, bm.Scenario{Path: bm.Replay, Work: bm.Small, Workers: 1}, bm.Elapsed),
			r.beside(s.memory, bm.MemoryLeast, bm.Scenario{Path: bm.Replay, Work: bm.Large, Workers: 1}, bm.Elapsed),
			r.beside(s.inRedis, bm.RedisLeast, bm.Scenario{Path: bm.First, Work: bm.Small, Workers: 16}, bm.Processor),
			r.beside(s.inRedis, bm.RedisLeast, bm.Scenario{Path: bm.Replay, Work: bm.Small, Workers: 16}, bm.Processor),
			r.both(s.memory, bm.Allocs), r.both(s.inRedis, bm.RoundTrips), s.lacks})
	}
	return head, rows
}

func (r *results) beside(of, to *bm.Subject, s bm.Scenario, by func(bm.Cost) time.Duration) string {
	c, ok := r.find(of.Store, s)
	if !ok {
		return "-"
	}
	return number(c.ratio(of, to, by))
}

// both returns an exact figure of a first execution and of a replay.
func (r *results) both(s *bm.Subject, of bm.Quantity) string {
	first, again := r.exact[counted{s, bm.First, bm.Small}], r.exact[counted{s, bm.Replay, bm.Small}]
	return number(of.In(first)) + " / " + number(of.In(again))
}
