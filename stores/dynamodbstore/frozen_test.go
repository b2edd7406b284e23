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

// thaws are the operations of a process that is frozen in their handlers, by their keys.
var thaws = map[string]struct {
	waits bool   // the handler, for the end of its context; otherwise it answers as soon as the process goes on
	heir  string // what another process does meanwhile
	said  string // by the process that was frozen
}{
	"waits, heir works":      {true, "works", fmt.Sprintf("ended by %q, refused", idempotency.ErrClaimLost)},
	"waits, no heir":         {true, "none", fmt.Sprintf("ended by %q, stored", idempotency.ErrClaimLost)},
	"answers, heir works":    {false, "works", "refused"},
	"answers, heir answered": {false, "answered", "refused"},
	"answers, no heir":       {false, "none", "stored"},
}

// A process stands still (SIGSTOP) in its handlers for longer than their leases and Skew, as when its machine is suspended.
// Then it goes on. What another process has taken over it does not change, and its handlers' contexts end. Each card is
// charged once: both processes send the same key.
func TestFrozenProcess(t *testing.T) {
	if url := os.Getenv(frozenURL); url != "" {
		freezable(t, url)
		return
	}
	t.Parallel()
	s, provider := newService(t), killtest.NewProvider(t)
	store := dynamodbstore.New(s.client, brief)
	process := startFreezable(t, frozenURL+"="+s.serve(t), provider.Env())
	process.hear(t) // all have charged
	process.freeze(t, store)
	heirs := succeed(t, store, provider)
	before := make(map[string]attributes)
	for key := range thaws {
		before[key] = s.item(key)
	}
	said := process.thaw(t)
	for key, tt := range thaws {
		assert.Equal(t, tt.said, said[key], key)
		if tt.heir != "none" {
			assert.Equal(t, before[key], s.item(key), key)
		}
	}
	heirs.end()
	for key, tt := range thaws {
		winner := "heir"
		if tt.heir == "none" {
			winner = "frozen"
		}
		requireReplay(t, store, key, idempotency.Response{Body: []byte(winner)})
	}
	operations, calls, charges := provider.Counts()
	require.Equal(t, []int{5, 5}, []int{operations, charges})
	require.GreaterOrEqual(t, calls, 8, "five, and three by the heirs")
}

// heirs are the attempts of this process, which has taken over.
type heirs struct {
	running sync.WaitGroup
	ends    chan struct{} // closed when those that work are to answer
	end     func()
}

// succeed has this process take over, and returns when each attempt has answered or works.
func succeed(t *testing.T, store idempotency.Store, provider *killtest.Provider) *heirs {
	t.Helper()
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{Lease: time.Minute})
	require.NoError(t, err)
	h := &heirs{ends: make(chan struct{})}
	h.end = sync.OnceFunc(func() {
		close(h.ends)
		h.running.Wait()
	})
	t.Cleanup(h.end)
	var begun sync.WaitGroup
	for key, tt := range thaws {
		if tt.heir == "none" {
			continue
		}
		begun.Add(1)
		begins := sync.OnceFunc(begun.Done)
		h.running.Go(func() {
			defer begins()
			_, _, err := runner.Do(t.Context(), keyOf(key), nil, func(ctx context.Context) (idempotency.Response, error) {
				err := provider.Charge(ctx)
				if tt.heir == "works" {
					begins()
					<-h.ends
				}
				return idempotency.Response{Body: []byte("heir")}, err
			})
			assert.NoError(t, err, key)
		})
	}
	begun.Wait()
	return h
}

const frozenURL = "DYNAMODBSTORE_FROZEN"

// brief are the options of a process that is frozen, and of its heirs.
var brief = dynamodbstore.Options{Skew: time.Second}

// freezable executes the operations, and says what becomes of them.
func freezable(t *testing.T, url string) {
	const lease = 2 * time.Second
	store := dynamodbstore.New(newClient(url, http.DefaultTransport), brief)
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{Lease: lease, StoreTimeout: lease})
	require.NoError(t, err)
	thawed := make(chan struct{})
	var all sync.WaitGroup
	for key, tt := range thaws {
		all.Go(func() {
			charged, ended := false, ""
			work := func(ctx context.Context) (idempotency.Response, error) {
				if err := killtest.Charge(ctx); err != nil {
					return idempotency.Response{}, err
				}
				charged = true
				fmt.Printf("%s: charged\n", key)
				<-thawed
				if tt.waits {
					<-ctx.Done()
					ended = fmt.Sprintf("ended by %q, ", context.Cause(ctx))
				}
				return idempotency.Response{Body: []byte("frozen")}, nil
			}
			var err error
			for !charged { // on a busy machine, the store may be too slow for the lease
				_, _, err = runner.Do(t.Context(), keyOf(key), nil, work)
			}
			fmt.Printf("%s: %s%s\n", key, ended, outcome(err))
		})
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	close(thawed)
	all.Wait()
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "stored"
	case errors.Is(err, idempotency.ErrClaimLost):
		return "refused"
	default:
		return err.Error()
	}
}

// frozen is a process that is frozen for longer than its claims last.
type frozen struct {
	*os.Process
	input  io.Closer
	output *bufio.Scanner
}

func startFreezable(t *testing.T, env ...string) *frozen {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestFrozenProcess$")
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // one that is stopped does not end by itself
	input, err := cmd.StdinPipe()
	require.NoError(t, err)
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &frozen{cmd.Process, input, bufio.NewScanner(output)}
}

// hear returns what the process says of each operation.
func (f *frozen) hear(t *testing.T) map[string]string {
	t.Helper()
	said := make(map[string]string)
	for len(said) < len(thaws) {
		require.True(t, f.output.Scan())
		key, what, _ := strings.Cut(f.output.Text(), ": ")
		said[key] = what
	}
	return said
}

// freeze stops the process until its claims have lapsed.
func (f *frozen) freeze(t *testing.T, store *dynamodbstore.Store) {
	t.Helper()
	require.NoError(t, f.Signal(syscall.SIGSTOP))
	for key := range thaws {
		require.Eventually(t, func() bool {
			entry, err := store.Inspect(t.Context(), keyOf(key))
			return err == nil && entry.State == idempotency.StateAbandoned
		}, time.Minute, 10*time.Millisecond)
	}
}

// thaw lets the process go on.
func (f *frozen) thaw(t *testing.T) map[string]string {
	t.Helper()
	require.NoError(t, f.input.Close())
	require.NoError(t, f.Signal(syscall.SIGCONT))
	return f.hear(t)
}
