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
)

// plan is what records of some lifetime need.
type plan struct {
	records float64
	gb      float64 // with all copies, and what stays free
	servers float64 // masters or primaries, without their replicas
	price   float64 // USD a month
}

// inRedis needs memory for all records, and a core for each master.
func inRedis(ttl time.Duration, record int64, request time.Duration) plan {
	p := plan{records: planRate * ttl.Seconds()}
	once := p.records * float64(record) / 1e9 / full
	p.gb = copiesOfAll * once
	p.servers = math.Ceil(max(once/roomOfMaster, planRate*request.Seconds()/busy))
	p.price = p.gb*perGB + copiesOfAll*p.servers*perCore
	return p
}

// inPostgres needs as many primaries as take the commits, each with the cores of this machine.
func inPostgres(ttl time.Duration, record int64, each float64, cores int) plan {
	p := plan{records: planRate * ttl.Seconds()}
	p.gb = copiesOfAll * p.records * float64(record) / 1e9 / full
	p.servers = math.Ceil(planRate / each / busy)
	p.price = p.gb*perDiskGB + copiesOfAll*p.servers*float64(cores)*perCore
	return p
}

// write adds a row.
func (p plan) write(b *strings.Builder, store, ttl string) {
	fmt.Fprintf(b, "| %s | %s | %s million | %s | %s | %s |\n", store, ttl, thousands(p.records/1e6), thousands(p.gb),
		thousands(p.servers), thousands(p.price))
}

// planned is the section of the page that makes servers and money of what was measured.
func planned(sizes []size, connections []load, masters []cluster, cores int) string {
	bytes := make(map[string]int64) // of a record, where there are most
	for _, s := range sizes {
		bytes[s.store] = s.bytes
	}
	most := 0.0
	for _, l := range connections {
		if l.store == "PostgreSQL" {
			most = max(most, l.first)
		}
	}
	one := masters[0].busiest
	var b strings.Builder
	fmt.Fprintf(&b, planning, humanize.Comma(bytes["Redis"]), microseconds(one), 100*busy, cores, thousands(most),
		humanize.Comma(bytes["PostgreSQL"]), 100*full, copiesOfAll-1, perGB, perDiskGB, perCore, roomOfMaster, thousands(planRate))
	for _, ttl := range []struct {
		name string
		time.Duration
	}{{"1 hour", time.Hour}, {"24 hours", 24 * time.Hour}, {"7 days", 7 * 24 * time.Hour}} {
		inRedis(ttl.Duration, bytes["Redis"], one).write(&b, "Redis Cluster", ttl.name)
		inPostgres(ttl.Duration, bytes["PostgreSQL"], most, cores).write(&b, "PostgreSQL, sharded by user", ttl.name)
	}
	return b.String() + afterPlan
}

const planning = `
## Planning

Put in your own figures. The rate is that of first executions: a replay costs less, and keeps nothing.

- **Records** = rate x ` + "`TTL`" + `.
- **Room** = records x bytes of a record x copies / what may be full. A record with an answer of 200 B takes %s B in Redis.
- **Masters of Redis** = room / memory of a master, but at least rate x %s / %.0f %%: a master uses one core, and half of it is
  to stay free for a failover and for deletion.
- **Primaries of PostgreSQL** = rate / what one commits. This machine, with %d cores, takes %s first executions a second
  without waiting for a disk; [durable.md](durable.md) says how many with one. A record takes %s B. One primary more needs a
  rule for which user is where, as [regions](../../examples/regions/README.md) have one.
- **Money** = room x price + cores x price.

The example: memory and disks are full to %.0f %%, there is %d replica, a GB of memory costs %.0f USD a month, of disk %.2f USD, and a
core %.0f USD. A master has %.0f GB. The rate is %s first executions a second:

| store | ` + "`TTL`" + ` | records | GB, with replicas | masters or primaries | USD a month |
|---|---|---:|---:|---:|---:|
`

const afterPlan = `
So ` + "`TTL`" + ` decides what it costs in Redis, and the rate what it costs in PostgreSQL. What helps, most of all first: guard only
the routes whose effects must not be doubled; give routes that are retried within minutes a short ` + "`TTL`" + `; keep less of an answer
(` + "`Tombstone`" + `).
`
