package main

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// What the example of the plan assumes. Everybody has other prices.
const (
	planRate = 100_000 // first executions a second

	perGB, perDiskGB, perCore = 5.0, 0.10, 25.0 // USD a month

	roomOfMaster = 100.0 // GB
	full         = 0.7   // how much of memory or disk records may take
	busy         = 0.5   // how much of a core may be in use
	copiesOfAll  = 2     // the record, and that of a replica

	// Bytes of a record with an answer of 200 B, by footprint.md. The copies of this measurement take less: they have no
	// fields of header, and were never updated.
	redisRecord, postgresRecord = 754, 1241

	// First executions a second of a primary that waits for its disk, by durable.md.
	postgresRate, postgresCores = 3230.0, 2
)

// plan is what records of some lifetime need.
type plan struct {
	records float64
	gb      float64 // with all copies, and what stays free
	servers float64 // masters or primaries, without their replicas
	price   float64 // USD a month
}

// inRedis needs memory for all records, and a core for each master.
func inRedis(ttl time.Duration, request time.Duration) plan {
	p := plan{records: planRate * ttl.Seconds()}
	once := p.records * redisRecord / 1e9 / full
	p.gb = copiesOfAll * once
	p.servers = math.Ceil(max(once/roomOfMaster, planRate*request.Seconds()/busy))
	p.price = p.gb*perGB + copiesOfAll*p.servers*perCore
	return p
}

// inPostgres needs as many primaries as take the commits.
func inPostgres(ttl time.Duration) plan {
	p := plan{records: planRate * ttl.Seconds()}
	p.gb = copiesOfAll * p.records * postgresRecord / 1e9 / full
	p.servers = math.Ceil(planRate / postgresRate / busy)
	p.price = p.gb*perDiskGB + copiesOfAll*p.servers*postgresCores*perCore
	return p
}

// write adds a row.
func (p plan) write(b *strings.Builder, store, ttl string) {
	fmt.Fprintf(b, "| %s | %s | %s million | %s | %s | %s |\n", store, ttl, thousands(p.records/1e6), thousands(p.gb),
		thousands(p.servers), thousands(p.price))
}

// planned is the section of the page that makes servers and money of a rate and a TTL.
func planned(one cluster) string {
	var b strings.Builder
	fmt.Fprintf(&b, planning, redisRecord, humanize.Comma(postgresRecord), microseconds(one.busiest), 100*busy,
		thousands(postgresRate), postgresCores, 100*full, copiesOfAll-1, perGB, perDiskGB, perCore, roomOfMaster,
		thousands(planRate))
	for _, ttl := range []struct {
		name string
		time.Duration
	}{{"1 hour", time.Hour}, {"24 hours", 24 * time.Hour}, {"7 days", 7 * 24 * time.Hour}} {
		inRedis(ttl.Duration, one.busiest).write(&b, "Redis Cluster", ttl.name)
		inPostgres(ttl.Duration).write(&b, "PostgreSQL, divided by user", ttl.name)
	}
	return b.String() + afterPlan
}

const planning = `
## Planning

Put in your own figures. The rate is that of first executions: a replay costs less, and keeps nothing.

- **Records** = rate x ` + "`TTL`" + `.
- **Room** = records x bytes of a record x copies / the share that may be full. With an answer of 200 B, a record takes %d B in
  Redis, and %s B in PostgreSQL ([footprint](footprint.md)).
- **Masters of Redis** = room of one copy / memory of a master, but at least rate x %s / %.0f %%. A master uses one core, and half
  of it stays free for a failover and for deletion.
- **Primaries of PostgreSQL** = rate / what one of them takes / the same share. One takes %s first executions a second on %d
  cores, if it waits for its disk ([durable](durable.md)). With more than one, each user has a home, as in
  [regions](../../../examples/regions/README.md).
- **Money** = room x price of a GB + cores x price of a core.

The example: memory and disks are full to %.0f %%. There is %d replica. A GB of memory costs %.0f USD a month, a GB of disk %.2f USD,
and a core %.0f USD. A master has %.0f GB. The rate is %s first executions a second:

| store | ` + "`TTL`" + ` | records | GB, with replicas | masters or primaries | USD a month |
|---|---|---:|---:|---:|---:|
`

const afterPlan = `
In Redis, ` + "`TTL`" + ` decides what it costs, and in PostgreSQL the rate. What helps most: guard only the routes whose effects
must not be doubled, and give a short ` + "`TTL`" + ` to routes that are retried within minutes.
`
