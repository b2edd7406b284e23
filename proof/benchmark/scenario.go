package benchmark

import (
	"errors"
	"fmt"
)

// Scenario describes the requests of a batch.
type Scenario struct {
	Path    Path
	Work    Work
	Workers int
	Served  bool // over HTTP on loopback
}

func (s Scenario) String() string {
	name := fmt.Sprintf("%s, %s", s.Path, s.Work)
	if s.Workers > 1 {
		name += fmt.Sprintf(", %d workers", s.Workers)
	}
	if s.Served {
		name += ", over HTTP"
	}
	return name
}

// measureBatch returns the cost of n requests of the scenario.
func (s Scenario) measureBatch(b *Backends, subject *Subject, n int) (Cost, error) {
	r, err := openRun(b, subject, s, n)
	var cost Cost
	if err == nil {
		err = r.prepareRequests()
	}
	if err == nil {
		cost, err = r.measureCost()
	}
	if err == nil {
		err = r.checkOutcome()
	}
	return cost, errors.Join(err, r.close())
}
