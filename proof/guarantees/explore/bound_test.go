package explore

import (
	"encoding/json"
	"strings"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
)

// bound says what may happen in an execution.
type bound struct {
	Requests string `json:"requests"`           // "1a 1b 2a 2a+": process 1 gets one with key a and one with b, and process 2 two with a
	Faults   int    `json:"faults"`             // calls that do not end well
	Passages int    `json:"passages,omitempty"` // of time, without the pauses of the library
	Jumps    int    `json:"jumps,omitempty"`    // of the store's clock, to the end of a lease, as if its owner had stood still
	Slow     bool   `json:"slow,omitempty"`     // faults are slow calls only
	Patient  bool   `json:"patient,omitempty"`  // the store may take four fifths of a lease, instead of a moment
	Refuse   bool   `json:"refuse,omitempty"`   // the policy
	Runner   bool   `json:"runner,omitempty"`   // and not the middleware
	Outgrows bool   `json:"outgrows,omitempty"` // answers are larger than what is kept of them, and the handler goes on
	Steps    bool   `json:"steps,omitempty"`    // the effect is a step of the operation
	Rows     bool   `json:"rows,omitempty"`     // the effect is a row, which a step writes in a transaction
	Bug      string `json:"bug,omitempty"`      // of the store
}

func (b bound) abandoned() idempotency.Abandoned {
	if b.Refuse {
		return idempotency.Refuse
	}
	return idempotency.ReExecute
}

// scaled returns a smaller bound with the race detector and with -times 0.2, and a larger one with -times 10.
func (b bound) scaled() bound {
	switch amount := effort.Of(100); {
	case amount < 10:
		b.Faults, b.Passages = max(1-b.Jumps, b.Faults-1), max(0, b.Passages-3)
	case amount < 100:
		b.Faults, b.Passages = max(1-b.Jumps, b.Faults-1), max(0, b.Passages-2)
	case amount >= 1000:
		b.Faults++
	}
	return b
}

func (b bound) String() string {
	text, _ := json.Marshal(b) // never fails
	return strings.NewReplacer(`"`, "", "{", "", "}", "", ":true", "", ":", "=", ",", " ").Replace(string(text))
}

// schedule names an execution: the choices that were made.
type schedule struct {
	bound
	Picks []int `json:"picks"`
}

func (s schedule) String() string {
	text, _ := json.Marshal(s) // never fails
	return string(text)
}
