// Package activeactive simulates a store in two regions: both regions take writes, and replicate the writes asynchronously. The
// simulation counts the operations with two executions or more. Time is simulated too, so a setting always has the same result.
package activeactive

import (
	"math/rand/v2"
	"time"
)

// Setting holds the parameters of a simulation.
type Setting struct {
	OneHome          bool          // each key has one home region, and requests elsewhere are forwarded to the home
	ReplicationDelay time.Duration // from a write to its arrival in the remote region
	PartitionShare   float64       // the share of each hour in which the regions cannot reach each other
	RetryDelay       time.Duration // the mean time from a failure to the client's next request
	ClockSkew        time.Duration // how far the clock of the second region is ahead
}

// Parameters that are the same in all settings.
const (
	lostAnswerShare      = 0.01                  // share of requests whose connection breaks during the execution
	failedExecutionShare = 0.01                  // share of executions that end with a 503 and no effect, and release their claim
	minExecutionTime     = 50 * time.Millisecond // the shortest execution
	maxExecutionTime     = 150 * time.Millisecond
	maxRequests          = 10 // the client gives up after this number of requests
	endOfSimulation      = 24 * time.Hour
)

// CountDoubles simulates the given number of operations, and returns how many operations take effect more than once. Each operation
// has its own key and its own client.
func CountDoubles(s Setting, operations int) (doubles int) {
	o := operation{Setting: s, random: rand.New(rand.NewPCG(1, 2))}
	for range operations {
		if o.simulateClient() > 1 {
			doubles++
		}
	}
	return doubles
}

// operation is the state of one key in both regions.
type operation struct {
	Setting
	random            *rand.Rand
	homeRegion        int
	writes            []recordVersion
	runningExecutions []execution
	effectCount       int
}

// recordVersion is a version of the record, which one write has made.
type recordVersion struct {
	visibleAt [2]time.Duration // when the version arrives, by region
	timestamp time.Duration    // the clock of the writing region
	owner     int              // the number of the request that has claimed the key
	state     recordState
}

type recordState int

const (
	absent recordState = iota
	claimed
	released
	completed
)

// execution is one run of the handler.
type execution struct {
	owner, region int
	endsAt        time.Duration
	isFailing     bool
}

// simulateClient sends requests until the client gets a final answer, and returns how often the operation has taken effect.
func (o *operation) simulateClient() (effectCount int) {
	o.effectCount, o.writes = 0, o.writes[:0]
	o.homeRegion = o.random.IntN(2)
	region, now := o.random.IntN(2), o.randomTime(0, time.Hour)
	for owner := range maxRequests {
		answered, at := o.sendRequest(owner, region, now)
		if answered {
			break
		}
		now = at + o.randomTime(o.RetryDelay/2, o.RetryDelay*3/2)
		region = o.random.IntN(2) // the load balancer chooses the region of each retry at random
	}
	o.finishExecutions(endOfSimulation)
	return o.effectCount
}

// sendRequest sends a request to region. answered reports whether the client gets a final answer, and at is the time when the
// client knows.
func (o *operation) sendRequest(owner, region int, now time.Duration) (answered bool, at time.Duration) {
	if o.OneHome && region != o.homeRegion {
		if o.partitionEnd(now) != now {
			return false, now // refused, because the home region cannot be reached
		}
		region, now = o.homeRegion, now+o.ReplicationDelay
	}
	o.finishExecutions(now)
	losesAnswer := o.random.Float64() < lostAnswerShare
	switch o.readRecord(region, now).state {
	case completed:
		return !losesAnswer, now
	case claimed:
		return false, now
	}
	o.writeRecord(owner, region, now, claimed)
	end := now + o.randomTime(minExecutionTime, maxExecutionTime)
	o.runningExecutions = append(o.runningExecutions, execution{owner, region, end, o.random.Float64() < failedExecutionShare})
	if losesAnswer {
		return false, o.randomTime(now, end)
	}
	o.finishExecutions(end)
	record := o.readRecord(region, end)
	return record.owner == owner && record.state == completed, end
}

// finishExecutions finishes all executions that end by now, the earliest first. Executions overlap only after the client has
// lost an answer.
func (o *operation) finishExecutions(now time.Duration) {
	for {
		next := -1
		for i, e := range o.runningExecutions {
			if e.endsAt <= now && (next < 0 || e.endsAt < o.runningExecutions[next].endsAt) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		o.finishExecution(o.runningExecutions[next])
		o.runningExecutions = append(o.runningExecutions[:next], o.runningExecutions[next+1:]...)
	}
}

// finishExecution counts the effect of e, and writes the outcome. If the record in the region of e has a new owner,
// finishExecution leaves the record alone, because e has lost its claim.
func (o *operation) finishExecution(e execution) {
	outcome := released
	if !e.isFailing {
		o.effectCount++
		outcome = completed
	}
	if o.readRecord(e.region, e.endsAt).owner == e.owner {
		o.writeRecord(e.owner, e.region, e.endsAt, outcome)
	}
}

// readRecord returns the version that region reads: of the versions that have arrived, the version with the latest timestamp.
func (o *operation) readRecord(region int, now time.Duration) (latest recordVersion) {
	latest.owner = -1
	for _, w := range o.writes {
		if w.visibleAt[region] <= now && (latest.state == absent || w.timestamp >= latest.timestamp) {
			latest = w
		}
	}
	return latest
}

func (o *operation) writeRecord(owner, region int, now time.Duration, state recordState) {
	w := recordVersion{timestamp: now + time.Duration(region)*o.ClockSkew, owner: owner, state: state}
	w.visibleAt[region], w.visibleAt[1-region] = now, o.partitionEnd(now)+o.ReplicationDelay
	o.writes = append(o.writes, w)
}

// partitionEnd returns the end of the partition at now, or now itself if the regions are connected. Each hour begins with a
// partition.
func (o *operation) partitionEnd(now time.Duration) time.Duration {
	partition := time.Duration(o.PartitionShare * float64(time.Hour))
	if hour := now.Truncate(time.Hour); now-hour < partition {
		return hour + partition
	}
	return now
}

func (o *operation) randomTime(from, to time.Duration) time.Duration {
	return from + time.Duration(o.random.Int64N(int64(to-from)))
}
