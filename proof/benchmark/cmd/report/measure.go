package main

import (
	"errors"
	"fmt"
	"log"
	"os/exec"
	"regexp"
	"slices"
	"time"

	bm "github.com/idempotency-go/idempotency/proof/benchmark"
)

// results are all that was measured.
type results struct {
	machine  machine
	rounds   int
	limits   []bm.Limit // that are to be shown
	exact    map[counted]bm.Exact
	compared []comparison
	overhead float64 // of a record in memory
	took     time.Duration
}

// counted is something of which exact figures are known.
type counted struct {
	subject *bm.Subject
	path    bm.Path
	work    bm.Work
}

// comparison is what was measured of a scenario on one store.
type comparison struct {
	store    bm.Store
	scenario bm.Scenario
	subjects []*bm.Subject
	*bm.Comparison
}

// others are those whose exact figures are shown beside those of the library.
var others = []*bm.Subject{bm.MemoryLeast, bm.FiberMemory, bm.RedisLeast, bm.FiberRedis}

// measure measures what the limits need that match.
func measure(only *regexp.Regexp, rounds, records int) (*results, error) {
	limits := slices.DeleteFunc(slices.Clone(bm.Limits), func(l bm.Limit) bool {
		return !only.MatchString(title(l) + ": " + l.String())
	})
	r := &results{rounds: rounds, limits: limits, exact: make(map[counted]bm.Exact)}
	started := time.Now()
	err := r.count(only.String() == "")
	if err == nil {
		err = r.compare()
	}
	if err == nil && slices.ContainsFunc(limits, func(l bm.Limit) bool { return l.Of == bm.Overhead }) {
		r.overhead, err = bm.RecordOverhead(records)
	}
	r.took = time.Since(started)
	return r, err
}

// count measures what is exact.
func (r *results) count(all bool) error {
	b, err := bm.OpenCounting()
	if err != nil {
		return err
	}
	defer b.Close()
	r.machine = thisMachine(b)
	var wanted []counted
	for _, l := range r.limits {
		if l.Exact() {
			wanted = append(wanted, counted{l.Subject, l.Path, l.Work})
		}
	}
	for _, s := range others {
		if all {
			wanted = append(wanted, counted{s, bm.First, bm.Small}, counted{s, bm.Replay, bm.Small})
		}
	}
	for _, c := range wanted {
		if _, ok := r.exact[c]; ok {
			continue
		}
		if r.exact[c], err = bm.Measure(b, c.subject, c.path, c.work); err != nil {
			return err
		}
	}
	return nil
}

// compare runs every scenario that a limit needs.
func (r *results) compare() error {
	servers, err := bm.Open()
	if err != nil {
		return err
	}
	defer servers.Close()
	valkey, err := bm.OpenValkey()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		log.Print("there is no valkey-server")
	case err != nil:
		return err
	default:
		defer valkey.Close()
		r.machine.valkey = redisVersion(valkey)
	}
	for _, l := range r.limits {
		b := servers
		if l.Valkey {
			b = valkey
		}
		if _, done := r.find(l.Subject.Store, l.Scenario); l.Beside == nil || b == nil || done {
			continue
		}
		if err := r.run(b, l); err != nil {
			return fmt.Errorf("%s: %w", title(l), err)
		}
	}
	return nil
}

func (r *results) run(b *bm.Backends, l bm.Limit) error {
	c := comparison{store: l.Subject.Store, scenario: l.Scenario, subjects: l.Compared(l.Subject.Store)}
	var contenders []bm.Contender
	for _, s := range c.subjects {
		contenders = append(contenders, l.Contender(b, s, l.BatchSize(s.Store)))
	}
	started := time.Now()
	var err error
	c.Comparison, err = bm.Compare(r.rounds, contenders)
	r.compared = append(r.compared, c)
	log.Printf("%4.0f s  %s, %s", time.Since(started).Seconds(), c.store, c.scenario)
	return err
}

func (r *results) find(store bm.Store, s bm.Scenario) (comparison, bool) {
	i := slices.IndexFunc(r.compared, func(c comparison) bool { return c.store == store && c.scenario == s })
	if i < 0 {
		return comparison{}, false
	}
	return r.compared[i], true
}

// on returns what was compared on a store, over HTTP or not.
func (r *results) on(store bm.Store, served bool) []comparison {
	return slices.DeleteFunc(slices.Clone(r.compared), func(c comparison) bool {
		return c.store != store || c.scenario.Served != served
	})
}

// value returns what was measured of a limit, if it was.
func (r *results) value(l bm.Limit) (float64, bool) {
	switch {
	case l.Exact():
		exact, ok := r.exact[counted{l.Subject, l.Path, l.Work}]
		return l.Of.In(exact), ok
	case l.Of == bm.Overhead:
		return r.overhead, r.overhead > 0
	}
	c, ok := r.find(l.Subject.Store, l.Scenario)
	if !ok {
		return 0, false
	}
	switch l.Of {
	case bm.ProcessorTime:
		return c.ratio(l.Subject, l.Beside, bm.Processor), true
	case bm.ClientTime:
		return c.ratio(l.Subject, l.Beside, bm.ClientSide), true
	case bm.Throughput:
		return c.ratio(l.Beside, l.Subject, bm.Elapsed), true
	default:
		return c.ratio(l.Subject, l.Beside, bm.Elapsed), true
	}
}

func (c comparison) ratio(of, to *bm.Subject, by func(bm.Cost) time.Duration) float64 {
	return c.Ratio(slices.Index(c.subjects, of), slices.Index(c.subjects, to), by).Median
}

// title says what a limit is on.
func title(l bm.Limit) string {
	name := l.Subject.Name
	if l.Valkey {
		name += " (Valkey)"
	}
	if l.Path == bm.Kept {
		return name + ", " + string(bm.Kept)
	}
	return fmt.Sprintf("%s, %s", name, l.Scenario)
}
