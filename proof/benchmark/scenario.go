package benchmark

import (
	"errors"
	"fmt"
)

// Scenario is what a batch does.
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

// batch returns what n requests of the scenario cost the subject.
func (s Scenario) batch(b *Backends, subject *Subject, n int) (Cost, error) {
	r, err := open(b, subject, s, n)
	var cost Cost
	if err == nil {
		err = r.prepare()
	}
	if err == nil {
		cost, err = r.cost()
	}
	if err == nil {
		err = r.check()
	}
	return cost, errors.Join(err, r.close())
}
