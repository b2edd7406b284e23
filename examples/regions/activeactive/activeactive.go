// Package activeactive simulates a store that two regions share by asynchronous replication, both of which take writes.
// It counts the operations that are executed twice. Nothing in it depends on real time: a setting always has the same
// result.
package activeactive

import (
	"math/rand/v2"
	"time"
)

// Setting is what the result depends on.
type Setting struct {
	OneHome   bool          // a key has one home, to which the other region forwards
	Delay     time.Duration // until a write is in the other region
	Partition float64       // the share of each hour in which the regions do not reach each other
	Retry     time.Duration // the mean time from a failure to the client's next request
	Skew      time.Duration // by which the clock of the second region is ahead
}

// What is the same in all settings.
const (
	lost     = 0.01                  // requests whose answer is lost, because the connection breaks while they are executed
	failed   = 0.01                  // executions that end with a 503 and without an effect, so that their claim is released
	shortest = 50 * time.Millisecond // the time that an execution takes
	longest  = 150 * time.Millisecond
	requests = 10 // after which a client gives up
	forever  = 24 * time.Hour
)

// Twice returns how many operations take effect more than once. Each has a key and a client of its own.
func Twice(s Setting, operations int) (twice int) {
	o := operation{Setting: s, chance: rand.New(rand.NewPCG(1, 2))}
	for range operations {
		if o.order() > 1 {
			twice++
		}
	}
	return twice
}

// operation is one key, in both regions.
type operation struct {
	Setting
	chance  *rand.Rand
	home    int
	writes  []write
	running []execution
	effects int
}

// write is one version of the record.
type write struct {
	in    [2]time.Duration // when it is in each region
	stamp time.Duration    // the time of its region
	owner int              // the request that has claimed the key
	state state
}

type state int

const (
	absent state = iota
	claimed
	released
	completed
)

type execution struct {
	owner, region int
	end           time.Duration
	fails         bool
}

// order sends requests until one is answered, and returns how often the operation has taken effect.
func (o *operation) order() (effects int) {
	o.effects, o.writes = 0, o.writes[:0]
	o.home = o.chance.IntN(2)
	region, now := o.chance.IntN(2), o.within(0, time.Hour)
	for owner := range requests {
		answered, at := o.request(owner, region, now)
		if answered {
			break
		}
		now = at + o.within(o.Retry/2, o.Retry*3/2)
		region = o.chance.IntN(2) // the load balancer sends half of the retries to the other region
	}
	o.settle(forever)
	return o.effects
}

// request returns whether the client gets a final answer, and when it knows.
func (o *operation) request(owner, region int, now time.Duration) (answered bool, at time.Duration) {
	if o.OneHome && region != o.home {
		if o.healed(now) != now {
			return false, now // refused: the home cannot be reached
		}
		region, now = o.home, now+o.Delay
	}
	o.settle(now)
	breaks := o.chance.Float64() < lost
	switch o.record(region, now).state {
	case completed:
		return !breaks, now
	case claimed:
		return false, now
	}
	o.write(owner, region, now, claimed)
	end := now + o.within(shortest, longest)
	o.running = append(o.running, execution{owner, region, end, o.chance.Float64() < failed})
	if breaks {
		return false, o.within(now, end)
	}
	o.settle(end)
	kept := o.record(region, end)
	return kept.owner == owner && kept.state == completed, end
}

// settle ends all executions that end by then. Those of one operation overlap only if its client has lost an answer.
func (o *operation) settle(now time.Duration) {
	for {
		next := -1
		for i, e := range o.running {
			if e.end <= now && (next < 0 || e.end < o.running[next].end) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		o.finish(o.running[next])
		o.running = append(o.running[:next], o.running[next+1:]...)
	}
}

// finish is where the effect happens. An owner that finds another one in its region does not touch the record.
func (o *operation) finish(e execution) {
	result := released
	if !e.fails {
		o.effects++
		result = completed
	}
	if o.record(e.region, e.end).owner == e.owner {
		o.write(e.owner, e.region, e.end, result)
	}
}

// record is what a region sees: of the writes that it has, the one with the latest stamp.
func (o *operation) record(region int, now time.Duration) (latest write) {
	latest.owner = -1
	for _, w := range o.writes {
		if w.in[region] <= now && (latest.state == absent || w.stamp >= latest.stamp) {
			latest = w
		}
	}
	return latest
}

func (o *operation) write(owner, region int, now time.Duration, state state) {
	w := write{stamp: now + time.Duration(region)*o.Skew, owner: owner, state: state}
	w.in[region], w.in[1-region] = now, o.healed(now)+o.Delay
	o.writes = append(o.writes, w)
}

// healed is now, or the end of the partition in which now is: each hour begins with one.
func (o *operation) healed(now time.Duration) time.Duration {
	partition := time.Duration(o.Partition * float64(time.Hour))
	if hour := now.Truncate(time.Hour); now-hour < partition {
		return hour + partition
	}
	return now
}

func (o *operation) within(from, to time.Duration) time.Duration {
	return from + time.Duration(o.chance.Int64N(int64(to-from)))
}
