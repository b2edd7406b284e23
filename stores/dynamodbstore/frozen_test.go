//go:build linux

package dynamodbstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/killtest"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

// frozenOperations are the operations of a process that is frozen in its handlers, by key.
var frozenOperations = map[string]struct {
	awaitsEnd  bool   // the handler waits for the end of its context, and otherwise answers when the process continues
	successor  string // work of another process during the pause
	wantReport string // outcome in the frozen process
}{
	"waits, successor works":      {true, "works", fmt.Sprintf("ended by %q, refused", idempotency.ErrClaimLost)},
	"waits, no successor":         {true, "none", fmt.Sprintf("ended by %q, stored", idempotency.ErrClaimLost)},
	"answers, successor works":    {false, "works", "refused"},
	"answers, successor answered": {false, "answered", "refused"},
	"answers, no successor":       {false, "none", "stored"},
}

// A process stands still (SIGSTOP) in its handlers for longer than the leases and Skew, as in a suspended machine. After the
// process continues, it changes no record that another process has taken over, and the contexts of its handlers end. Each
// card is charged once, because both processes send the same key.
func TestFrozenProcess(t *testing.T) {
	if url := os.Getenv(frozenURL); url != "" {
		runFrozenOperations(t, url)
		return
	}
	t.Parallel()
	s, provider := newService(t), killtest.NewProvider(t)
	store := dynamodbstore.New(s.client, frozenOptions)
	process := startFrozenProcess(t, frozenURL+"="+s.startServer(t), provider.Env())
	process.readReports(t) // all operations have charged
	process.freeze(t, store)
	successors := takeOverKeys(t, store, provider)
	before := make(map[string]attributes)
	for key := range frozenOperations {
		before[key] = s.readItem(key)
	}
	reports := process.thaw(t)
	for key, tt := range frozenOperations {
		assert.Equal(t, tt.wantReport, reports[key], key)
		if tt.successor != "none" {
			assert.Equal(t, before[key], s.readItem(key), key)
		}
	}
	successors.end()
	for key, tt := range frozenOperations {
		winner := "successor"
		if tt.successor == "none" {
			winner = "frozen"
		}
		requireReplay(t, store, key, idempotency.Response{Body: []byte(winner)})
	}
	operations, calls, charges := provider.Counts()
	require.Equal(t, []int{5, 5}, []int{operations, charges})
	require.GreaterOrEqual(t, calls, 8, "five, and three by the successors")
}

// successors are the attempts that have taken over, in this process.
type successors struct {
	running sync.WaitGroup
	mayEnd  chan struct{} // closed when the working successors may answer
	end     func()
}

// takeOverKeys takes over in this process, and returns when each successor has answered or works.
func takeOverKeys(t *testing.T, store idempotency.Store, provider *killtest.Provider) *successors {
	t.Helper()
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{Lease: time.Minute})
	require.NoError(t, err)
	h := &successors{mayEnd: make(chan struct{})}
	h.end = sync.OnceFunc(func() {
		close(h.mayEnd)
		h.running.Wait()
	})
	t.Cleanup(h.end)
	var started sync.WaitGroup
	for key, tt := range frozenOperations {
		if tt.successor == "none" {
			continue
		}
		started.Add(1)
		signalStart := sync.OnceFunc(started.Done)
		h.running.Go(func() {
			defer signalStart()
			_, _, err := runner.Do(t.Context(), keyOf(key), nil, func(ctx context.Context) (idempotency.Response, error) {
				err := provider.Charge(ctx)
				if tt.successor == "works" {
					signalStart()
					<-h.mayEnd
				}
				return idempotency.Response{Body: []byte("successor")}, err
			})
			assert.NoError(t, err, key)
		})
	}
	started.Wait()
	return h
}

const frozenURL = "DYNAMODBSTORE_FROZEN"

// frozenOptions are the options of the frozen process and its successors.
var frozenOptions = dynamodbstore.Options{Skew: time.Second}

// runFrozenOperations executes the operations, and prints a report for each.
func runFrozenOperations(t *testing.T, url string) {
	const lease = 2 * time.Second
	store := dynamodbstore.New(newClient(url, http.DefaultTransport), frozenOptions)
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{Lease: lease, StoreTimeout: lease})
	require.NoError(t, err)
	thawed := make(chan struct{})
	var all sync.WaitGroup
	for key, tt := range frozenOperations {
		all.Go(func() {
			charged, ended := false, ""
			work := func(ctx context.Context) (idempotency.Response, error) {
				if err := killtest.Charge(ctx); err != nil {
					return idempotency.Response{}, err
				}
				charged = true
				fmt.Printf("%s: charged\n", key)
				<-thawed
				if tt.awaitsEnd {
					<-ctx.Done()
					ended = fmt.Sprintf("ended by %q, ", context.Cause(ctx))
				}
				return idempotency.Response{Body: []byte("frozen")}, nil
			}
			var err error
			for !charged { // on a busy machine, the store may be too slow for the lease
				_, _, err = runner.Do(t.Context(), keyOf(key), nil, work)
			}
			fmt.Printf("%s: %s%s\n", key, ended, describeOutcome(err))
		})
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	close(thawed)
	all.Wait()
}

func describeOutcome(err error) string {
	switch {
	case err == nil:
		return "stored"
	case errors.Is(err, idempotency.ErrClaimLost):
		return "refused"
	default:
		return err.Error()
	}
}

// frozenProcess is a process that is frozen for longer than its claims last.
type frozenProcess struct {
	*os.Process
	input  io.Closer
	output *bufio.Scanner
}

func startFrozenProcess(t *testing.T, env ...string) *frozenProcess {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestFrozenProcess$")
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a stopped process does not end by itself
	input, err := cmd.StdinPipe()
	require.NoError(t, err)
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &frozenProcess{cmd.Process, input, bufio.NewScanner(output)}
}

// readReports returns one report for each operation.
func (f *frozenProcess) readReports(t *testing.T) map[string]string {
	t.Helper()
	reports := make(map[string]string)
	for len(reports) < len(frozenOperations) {
		require.True(t, f.output.Scan())
		key, what, _ := strings.Cut(f.output.Text(), ": ")
		reports[key] = what
	}
	return reports
}

// freeze stops the process until its claims are abandoned.
func (f *frozenProcess) freeze(t *testing.T, store *dynamodbstore.Store) {
	t.Helper()
	require.NoError(t, f.Signal(syscall.SIGSTOP))
	for key := range frozenOperations {
		require.Eventually(t, func() bool {
			entry, err := store.Inspect(t.Context(), keyOf(key))
			return err == nil && entry.State == idempotency.StateAbandoned
		}, time.Minute, 10*time.Millisecond)
	}
}

// thaw lets the process continue, and returns its reports.
func (f *frozenProcess) thaw(t *testing.T) map[string]string {
	t.Helper()
	require.NoError(t, f.input.Close())
	require.NoError(t, f.Signal(syscall.SIGCONT))
	return f.readReports(t)
}
