package benchmark

import "time"

// Stall is the slowest of many operations.
type Stall struct {
	Clock     time.Duration
	Processor time.Duration // the most that the thread has worked for one: when the machine stands still, it does not
}

// stopwatch times operations on one thread, to which its user is locked.
type stopwatch struct {
	worst   Stall
	worked  time.Duration // by the thread, until the operation
	started time.Time
}

func (s *stopwatch) start() {
	s.worked = threadTime()
	s.started = time.Now()
}

func (s *stopwatch) stop() time.Duration {
	took := time.Since(s.started)
	s.worst.Clock = max(s.worst.Clock, took)
	if took > s.worst.Processor {
		s.worst.Processor = max(s.worst.Processor, min(took, threadTime()-s.worked))
	}
	return took
}
