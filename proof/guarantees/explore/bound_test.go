package explore

import (
	"encoding/json"
	"strings"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
)

// bound limits the events of an execution. Faults, Passages and ClockJumps are budgets.
type bound struct {
	// Requests names the process and the key of each request: "1a 1b 2a 2a+" sends process 1 a request with key a and a
	// request with key b, and process 2 two requests with key a.
	Requests string `json:"requests"`

	Faults         int    `json:"faults"`             // calls with an outcome other than succeeds
	Passages       int    `json:"passages,omitempty"` // of time, without the pauses of the library
	ClockJumps     int    `json:"jumps,omitempty"`    // of the store's clock to the end of a lease, as if the owner had stood still
	OnlySlowCalls  bool   `json:"slow,omitempty"`     // slow calls are the only faults
	LongTimeout    bool   `json:"patient,omitempty"`  // StoreTimeout is four fifths of a lease instead of shortTimeout
	Refuses        bool   `json:"refuse,omitempty"`   // the policy is Refuse instead of ReExecute
	UsesRunner     bool   `json:"runner,omitempty"`   // a Runner executes the operations instead of a Middleware
	AnswerTooLarge bool   `json:"outgrows,omitempty"` // answers exceed MaxResponse, and the handler continues after its answer
	EffectIsStep   bool   `json:"steps,omitempty"`    // the effect is a step of the operation
	EffectIsRow    bool   `json:"rows,omitempty"`     // a step writes the effect as a row in a transaction
	StoreBug       string `json:"bug,omitempty"`      // a bug that is put into the store
}

func (b bound) abandonedPolicy() idempotency.Abandoned {
	if b.Refuses {
		return idempotency.Refuse
	}
	return idempotency.ReExecute
}

// scaleToEffort returns a smaller bound with the race detector and with -times 0.2, and a larger bound with -times 10.
func (b bound) scaleToEffort() bound {
	switch amount := effort.Of(100); {
	case amount < 10:
		b.Faults, b.Passages = max(1-b.ClockJumps, b.Faults-1), max(0, b.Passages-3)
	case amount < 100:
		b.Faults, b.Passages = max(1-b.ClockJumps, b.Faults-1), max(0, b.Passages-2)
	case amount >= 1000:
		b.Faults++
	}
	return b
}

func (b bound) String() string {
	text, _ := json.Marshal(b) // never fails
	return strings.NewReplacer(`"`, "", "{", "", "}", "", ":true", "", ":", "=", ",", " ").Replace(string(text))
}

// schedule identifies an execution by the choices of the explorer.
type schedule struct {
	bound
	PickedIndexes []int `json:"picks"`
}

func (s schedule) String() string {
	text, _ := json.Marshal(s) // never fails
	return string(text)
}
