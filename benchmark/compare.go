package benchmark

import (
	"fmt"
	"slices"
	"time"
)

// Contender is one side of a comparison.
type Contender struct {
	Name string

	// Batch returns how long each operation of a short batch took.
	Batch func() (time.Duration, error)
}

// Comparison is the times of all contenders, by round.
type Comparison struct {
	contenders []Contender
	times      [][]time.Duration // by contender, then by round
}

// Compare runs a batch of each contender, in turns, for that many rounds: whatever else the machine does meets all of
// them alike.
func Compare(rounds int, contenders []Contender) (*Comparison, error) {
	c := &Comparison{contenders, make([][]time.Duration, len(contenders))}
	for round := range rounds {
		for i := range contenders {
			i = (i + round) % len(contenders) // nobody always follows the same neighbour
			d, err := contenders[i].Batch()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", contenders[i].Name, err)
			}
			c.times[i] = append(c.times[i], d)
		}
	}
	return c, nil
}

// Ratio says how the time of one contender relates to that of another.
type Ratio struct {
	Median    float64 // of the ratios, each of the two batches of one round
	Low, High float64 // their quartiles
}

// Ratio compares the contender with that index with another.
func (c *Comparison) Ratio(of, to int) Ratio {
	ratios := make([]float64, len(c.times[of]))
	for i := range ratios {
		ratios[i] = float64(c.times[of][i]) / float64(c.times[to][i])
	}
	slices.Sort(ratios)
	n := len(ratios)
	return Ratio{ratios[n/2], ratios[n/4], ratios[n*3/4]}
}

// Best returns the shortest time of the contender with that index.
func (c *Comparison) Best(i int) time.Duration { return slices.Min(c.times[i]) }
