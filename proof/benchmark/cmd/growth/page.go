package main

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

func page(sizes []size, connections []load, hot []heat, masters []cluster) string {
	var b strings.Builder
	fmt.Fprintf(&b, head, runtime.NumCPU(), runtime.GOARCH)

	fmt.Fprintf(&b, records, humanize.Comma(probes))
	b.WriteString("| store | records | bytes of a record | first | replay | first, while a tenth of the records expires | " +
		"`Maintain` of that tenth |\n|---|---:|---:|---:|---:|---:|---:|\n")
	for _, s := range sizes {
		maintenance := "–"
		if s.maintenance > 0 {
			maintenance = fmt.Sprintf("%.3g s", s.maintenance.Seconds())
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %v | %v | %v | %s |\n", s.store, humanize.Comma(int64(s.records)),
			humanize.Comma(s.bytes), s.claim, s.replay, s.expiring, maintenance)
	}

	b.WriteString(overWorkers + "| first executions a second |")
	table(&b, connections, func(l load) float64 { return l.first })
	b.WriteString("\n| replays a second |")
	table(&b, connections, func(l load) float64 { return l.replay })

	fmt.Fprintf(&b, oneKey, hotWorkers)
	for _, h := range hot {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", h.store, thousands(h.replaysOfManyKeys), thousands(h.replays), thousands(h.running))
	}

	fmt.Fprintf(&b, overCluster, humanize.Comma(clusterRequests))
	for _, c := range masters {
		fmt.Fprintf(&b, "| %d | %s | %s | %s |\n", c.masters, microseconds(c.busiest), microseconds(c.all),
			thousands(float64(time.Second)/float64(c.busiest)))
	}
	return b.String() + planned(masters[0])
}

// table has a row for each store, and a column for each number of workers.
func table(b *strings.Builder, loads []load, value func(load) float64) {
	workers := 0
	for ; loads[workers].store == loads[0].store; workers++ {
		fmt.Fprintf(b, " %d |", loads[workers].workers)
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", workers))
	for i, l := range loads {
		if i%workers == 0 {
			fmt.Fprintf(b, "\n| %s |", l.store)
		}
		fmt.Fprintf(b, " %s |", thousands(value(l)))
	}
	b.WriteString("\n")
}

// thousands writes a rate with about three digits.
func thousands(rate float64) string {
	unit := 1.0
	for rate >= 1000*unit {
		unit *= 10
	}
	return humanize.Comma(int64(rate/unit+0.5) * int64(unit))
}

const head = `# How cost grows

This page is written by

    go run ./proof/benchmark/cmd/growth

It asks each store directly, without HTTP. *First* is a claim and its completion with an answer of 200 B.
*Replay* is a request for a completed key. Servers and requests share a machine with %d cores (%s), over loopback. No server
waits for a disk: see [Stores on a disk](durable.md) for what that takes. [Planning](#planning) makes servers and money of
these figures.

`

const records = `## Records

![Time of a first execution and of a replay, and bytes of a record, by the number of records](growth-records.svg)

A time is the median of %s requests, one after the other, and behind it the time that 99 of 100 do not exceed. Then a tenth of
the records expires. Redis and the store in memory delete them by themselves, SQLite deletes some with each claim, and in
PostgreSQL and MariaDB ` + "`Maintain`" + ` deletes them meanwhile. The databases have 1 GB of memory for their tables, so that the
largest ones do not fit. Records are copies of one, made within the store. They take less than [real ones](footprint.md), which
have fields of header, and were updated once.

`

const overWorkers = `
## Connections

![First executions and replays a second, by the number of connections](growth-connections.svg)

So many workers ask at once. Each has a connection, and keys of its own. A figure is that of one second. That of the next one may
differ by a third, and in memory by more.

`

const oneKey = `
## One hot key

Requests a second that %d workers make together. A *duplicate* asks for a key whose first request is running.

| store | replays, a key for each worker | replays of one key | duplicates of one key |
|---|---:|---:|---:|
`

const overCluster = `
## Masters of a Redis Cluster

Processor time of redis-server for a first execution: %s of them, 16 at a time. The masters share the cores of this machine,
so the last column is computed: what the cluster serves if each master has a core, and the busiest one has nothing left.

| masters | the busiest one | all together | first executions a second |
|---:|---:|---:|---:|
`
