// Command benchmark measures what the library costs, and writes one page with two plots.
//
//	go run ./proof/benchmark/cmd/benchmark [-rounds n] [-records n] [-lookup n] [-out directory]
//
// The command starts private servers, so redis-server, PostgreSQL and MariaDB have to be installed. The machine should be
// idle otherwise: the page shows the load before the run. For example, -rounds 15 -records 100000 -lookup 10000000 takes
// 80 minutes on two slow cores. Of these, the lookup takes 50, with 10 GB of disk and 7 GB of memory, and each round almost
// two.
package main

import (
	"flag"
	"log"
	"os"
	"path/filepath"
	"time"

	bm "github.com/idempotency-go/idempotency/proof/benchmark"
)

func main() {
	log.SetFlags(log.Ltime)
	rounds := flag.Int("rounds", 11, "rounds of each comparison")
	records := flag.Int("records", 1_000_000, "the most records of a store, rounded down to a power of ten")
	lookup := flag.Int("lookup", 100_000, "the records of a store in which operations are looked up")
	out := flag.String("out", filepath.Join("proof", "benchmark", "results"), "directory of the page and its plots")
	flag.Parse()
	r, err := measureAll(plan{*rounds, 256, *records, *lookup, time.Second, bm.Limits})
	if err != nil {
		log.Fatal(err)
	}
	for name, content := range r.renderFiles() {
		if err := os.WriteFile(filepath.Join(*out, name), []byte(content), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// plan has the size of each measurement.
type plan struct {
	rounds            int           // of each comparison
	requestsPerClient int           // in a batch
	maxRecords        int           // most records of a store in the growth measurement
	lookupRecords     int           // records in the lookup measurement
	rateWindow        time.Duration // time of each throughput measurement
	limits            []bm.Limit    // counted exactly
}

// results are all figures of a run.
type results struct {
	plan
	machineRows [][]string
	limitCounts []count
	comparisons []comparison // on this machine
	distant     []comparison // with networkDelay to the server
	storeSizes  []size
	rates       []rate
	lookups     []lookup
}

// count is the cost of a request in the quantity of a limit.
type count struct {
	limit        bm.Limit
	countedValue float64
}

// comparison has the figures of the subjects of a group, with one client and with several clients.
type comparison struct {
	group
	networkDelay                   time.Duration
	path                           bm.Path
	withOneClient, withManyClients bm.Comparison
}

// group is a list of subjects on one store. The command compares all subjects with the first subject.
type group struct {
	store    bm.Store
	paths    []bm.Path
	subjects []*bm.Subject
}

const (
	clients      = 16
	networkDelay = time.Millisecond // of a round trip between two machines of one region
)

var (
	answers = []bm.Path{bm.First, bm.Replay}
	all     = []bm.Path{bm.First, bm.Replay, bm.Reuse}

	groups = []group{
		{bm.InMemory, []bm.Path{bm.NoKey}, []*bm.Subject{bm.BareHandler, bm.Memory, bm.FiberMemory}},
		{bm.InMemory, answers, []*bm.Subject{bm.MemoryLeast, bm.Memory, bm.FiberMemory}},
		{bm.InMemory, []bm.Path{bm.Reuse}, []*bm.Subject{bm.MemoryLeast, bm.Memory}},
		{bm.InRedis, answers, []*bm.Subject{bm.RedisLeast, bm.Redis, bm.FiberRedis}},
		{bm.InRedis, []bm.Path{bm.Reuse}, []*bm.Subject{bm.RedisLeast, bm.Redis}},
		{bm.InSQLite, all, []*bm.Subject{bm.SQLite}},
		{bm.InPostgres, all, []*bm.Subject{bm.PostgresLeast, bm.Postgres}},
		{bm.RowsInPostgres, all, []*bm.Subject{bm.PostgresByHand, bm.PostgresRows, bm.PostgresUnique}},
		{bm.InMariaDB, all, []*bm.Subject{bm.MariaDB}},
	}

	distantGroups = []group{
		{bm.InRedis, answers, []*bm.Subject{bm.RedisLeast, bm.Redis}},
		{bm.InPostgres, answers, []*bm.Subject{bm.PostgresLeast, bm.Postgres}},
		{bm.RowsInPostgres, answers, []*bm.Subject{bm.PostgresByHand, bm.PostgresRows, bm.PostgresUnique}},
	}
)

func measureAll(p plan) (*results, error) {
	r := &results{plan: p, machineRows: describeMachine()}
	if err := r.countCosts(); err != nil {
		return nil, err
	}
	if err := r.measureGrowth(); err != nil {
		return nil, err
	}
	if err := r.measureLookups(); err != nil {
		return nil, err
	}
	var err error
	if r.comparisons, err = p.compareGroups(groups, 0); err != nil {
		return nil, err
	}
	r.distant, err = p.compareGroups(distantGroups, networkDelay)
	return r, err
}

// compareGroups compares the subjects of each group on new backends, whose replies arrive later by delay.
func (p plan) compareGroups(groups []group, delay time.Duration) (all []comparison, err error) {
	open := bm.Open
	if delay > 0 {
		open = func() (*bm.Backends, error) { return bm.OpenDistant(delay) }
	}
	b, err := open()
	if err != nil {
		return nil, err
	}
	defer b.Close()
	for _, g := range groups {
		for _, path := range g.paths {
			c := comparison{group: g, networkDelay: delay, path: path}
			started := time.Now()
			for workers, compared := range map[int]*bm.Comparison{1: &c.withOneClient, clients: &c.withManyClients} {
				s := bm.Scenario{Path: path, Work: bm.Small, Workers: workers, Served: true}
				if *compared, err = bm.Compare(b, s, g.subjects, p.rounds, p.requestsPerClient*workers); err != nil {
					return nil, err
				}
			}
			log.Printf("%4.0f s  %s, %s", time.Since(started).Seconds(), c.heading(), path)
			all = append(all, c)
		}
	}
	return all, nil
}

func (r *results) countCosts() error {
	b, err := bm.OpenCounting()
	if err != nil {
		return err
	}
	defer b.Close()
	type measured struct {
		subject *bm.Subject
		bm.Scenario
	}
	done := make(map[measured]bm.Exact)
	for _, l := range r.limits {
		key := measured{l.Subject, l.Scenario}
		exact, ok := done[key]
		if !ok {
			if exact, err = bm.Measure(b, l.Subject, l.Path, l.Work); err != nil {
				return err
			}
			done[key] = exact
		}
		r.limitCounts = append(r.limitCounts, count{l, l.Of.In(exact)})
	}
	return nil
}
