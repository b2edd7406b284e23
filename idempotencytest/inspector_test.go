package idempotencytest

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/cache"
)

// inspectorBugs maps the name of a case to the bugs of referenceStore that the case must find.
var inspectorBugs = map[string][]string{
	"inspect/running": {
		"running seems abandoned", "lease left is the whole lease", "remaining time is that of the lease",
		"entry has no operation", "entry has another key", "running entry has no fingerprint", "inspecting ends the lease",
	},
	"inspect/next attempt":             {"entry is of the first attempt", "entry was created with its attempt"},
	"inspect/abandoned":                {"lapse is not shown", "inspecting forgets what was abandoned"},
	"inspect/same record":              {"creation is a microsecond late", "entry is of the first attempt"},
	"inspect/released":                 {"released seems abandoned", "remaining time is that of the claim"},
	"inspect/reason":                   {"reason is not shown", "reason outlives the attempt"},
	"inspect/completed":                {"response is not shown", "completed when created", "completed now", "size is that of the key"},
	"inspect/refusal":                  {"refusals seem released", "status is 200"},
	"inspect/large answer":             {"body is cut at 1 MiB"},
	"inspect/note":                     {"note is not in the response", "note is lost", "inspecting cuts the note for good"},
	"inspect/omitted":                  {"omission is not shown"},
	"inspect/no record":                {"inspecting claims", "nothing is an empty entry"},
	"inspect/freed":                    {"freed key is shown"},
	"inspect/expired":                  {"expired is shown", "inspecting prolongs the record"},
	"inspect/lease":                    {"inspecting prolongs the lease"},
	"inspect/keys":                     {"keys without user", "forgetting by the key alone"},
	"forget/completed":                 {"forgetting does nothing", "forgetting releases"},
	"forget/released":                  {"released is not forgotten"},
	"forget/abandoned":                 {"abandoned is not forgotten"},
	"forget/late owner":                {"forgetting fences the owner"},
	"forget/running":                   {"running is forgotten"},
	"forget/running again":             {"running is forgotten if the entry says otherwise", "what runs again has changed"},
	"forget/no record":                 {"forgetting nothing succeeds", "expired is forgotten"},
	"forget/other state":               {"state is not compared"},
	"forget/other attempt":             {"attempt is not compared"},
	"forget/other record":              {"time of creation is not compared"},
	"forget/concurrently":              {"forgetting checks, then removes"},
	"forget/completed during Begin":    {"forgetting removes twice"},
	"forget/released during Begin":     {"forgetting checks, then removes"},
	"forget/abandoned during takeover": {"forgetting checks, then removes"},
	"forget/abandoned during Extend":   {"forgetting checks, then removes"},
	"forget/abandoned during Complete": {"forgetting checks, then removes"},
	"list/states": {
		"states are ignored", "first state counts", "records are listed twice", "responses are listed", "listed size is another",
		"listed lease is over", "listed status is lost",
	},
	"list/nothing":       {"empty totals", "nothing is partial"},
	"list/newest":        {"oldest first by default"},
	"list/oldest":        {"always newest first"},
	"list/largest":       {"smallest first", "size is no order", "newest of equal size first"},
	"list/limit":         {"limit is ignored", "totals of what is listed", "limited, then sorted", "limit is one less"},
	"list/pages":         {"pages are ignored", "pages overlap", "totals of what follows"},
	"list/default limit": {"no default limit", "scan is 100"},
	"list/scan":          {"scan is silent", "scan is exceeded"},
	"list/users":         {"all users are listed", "users by their beginning"},
	"list/endpoints":     {"all endpoints are listed", "endpoints by their beginning", "parts of keys are an error"},
	"list/keys":          {"all keys are listed", "keys by their beginning", "parts of keys are an error"},
	"list/times":         {"times are ignored", "since is exclusive", "before is inclusive"},
	"list/each":          {"each is ignored", "each gets a page", "each gets some entries twice", "totals without each"},
	"list/error of each": {"error of each is lost", "each goes on after its error"},
	"list/progress":      {"progress goes back", "progress of an unknown total"},
	"list/expired":       {"expired is listed"},
	"list/forget":        {"listed entries cannot be forgotten"},
	"list/concurrently":  {"listing in two steps"},
}

// TestInspectorBugs checks that each case finds its seeded bugs, and that each case has a bug.
func TestInspectorBugs(t *testing.T) {
	checkSeededBugs(t, inspectorCases(), inspectorBugs, func(t *testing.T, bug, caughtBy string) error {
		newStore := func() idempotency.Store { return newReferenceStore(bug) }
		return findInspectorViolations(t, newStore, caughtBy)[caughtBy]
	})
}

func TestInspectorOfMemoryStore(t *testing.T) {
	RunInspector(t, newMemoryStore)
}

// TestNoFalseAlarmsOfInspectors checks that correct inspectors pass, with and without network delays, and with and
// without lists by user.
func TestNoFalseAlarmsOfInspectors(t *testing.T) {
	for name, newStore := range map[string]func() idempotency.Store{
		"memory":       func() idempotency.Store { return newMemoryStore(t) },
		"reference":    func() idempotency.Store { return newReferenceStore("") },
		"anonymous":    func() idempotency.Store { return newReferenceStore("knows no users") },
		"users only":   func() idempotency.Store { return newReferenceStore("knows users only") },
		"scanning":     func() idempotency.Store { return newReferenceStore("has to scan") },
		"sealed":       func() idempotency.Store { return mustSeal(t, newReferenceStore("")) },
		"sealed twice": func() idempotency.Store { return mustSeal(t, mustSeal(t, newReferenceStore(""))) },
		"cached": func() idempotency.Store {
			return cache.New(newReferenceStore(""), cache.Options{})
		},
	} {
		for _, delay := range []time.Duration{0, short / 4, short, 2 * short} {
			t.Run(name+" "+delay.String(), func(t *testing.T) {
				t.Parallel()
				newSlowStore := func() idempotency.Store { return slowInspector{slowStore{newStore(), delay}} }
				for name, err := range findInspectorViolations(t, newSlowStore) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
}

// TestRunInspectorFails checks that RunInspector fails for a store that is not an Inspector, and for a store with a
// bug.
func TestRunInspectorFails(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestBrokenInspector$")
	cmd.Env = append(os.Environ(), "IDEMPOTENCYTEST_BROKEN=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Error("the test of a store with a bug has passed")
	}
	for _, want := range []string{
		"FAIL: TestBrokenInspector/broken/inspector/forget/running",
		"Forget returned",
		"rule: A running operation is never forgotten",
		"a *idempotencytest.alteredStore does not implement idempotency.Inspector",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
}

// TestBrokenInspector is the failing test that TestRunInspectorFails runs in a process of its own.
func TestBrokenInspector(t *testing.T) {
	if os.Getenv("IDEMPOTENCYTEST_BROKEN") == "" {
		return
	}
	for name, store := range map[string]idempotency.Store{
		"broken": newReferenceStore("running is forgotten"), "none": &alteredStore{store: newReferenceStore("")},
	} {
		t.Run(name, func(t *testing.T) { RunInspector(t, func(*testing.T) idempotency.Store { return store }) })
	}
}

// findInspectorViolations returns the violations of the named cases, or of all cases if names is empty, by the names of
// the cases.
func findInspectorViolations(t *testing.T, newStore func() idempotency.Store, names ...string) map[string]error {
	return findFailures(t, inspectorCases(), func() subject { return subject{store: newStore()} }, names)
}

// slowInspector is an Inspector behind a slow network.
type slowInspector struct{ slowStore }

func (s slowInspector) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	s.sleepRandomly()
	defer s.sleepRandomly()
	return s.Store.(idempotency.Inspector).Inspect(ctx, key)
}

func (s slowInspector) InspectOperation(ctx context.Context, operation uuid.UUID) (idempotency.Entry, error) {
	s.sleepRandomly()
	defer s.sleepRandomly()
	return s.Store.(idempotency.Inspector).InspectOperation(ctx, operation)
}

func (s slowInspector) Forget(ctx context.Context, entry idempotency.Entry) error {
	s.sleepRandomly()
	defer s.sleepRandomly()
	return s.Store.(idempotency.Inspector).Forget(ctx, entry)
}

func (s slowInspector) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	s.sleepRandomly()
	defer s.sleepRandomly()
	return s.Store.(idempotency.Inspector).List(ctx, request)
}
