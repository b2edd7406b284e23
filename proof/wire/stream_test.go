package wire_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// pieces is the number of pieces in a streamed answer.
const pieces = 6

// A client that follows a simple rule gets a whole answer, wherever a streamed answer was cut: the client repeats
// the request with the key, and the second answer replaces the cut answer. If the second answer is marked as a
// replay, the bytes of the cut answer are a prefix of the second answer.
func TestStreamIsCutAtEveryPiece(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		meanwhile func(s *stream, r *http.Request) // called by the handler when the client has hung up
		lost      bool                             // the store loses the record after the answer is stored
		replayed  bool
	}{
		"the handler goes on": {meanwhile: waitForHangUp, replayed: true},
		"the record is lost":  {meanwhile: waitForHangUp, lost: true},
		"the handler gives up": {meanwhile: func(_ *stream, r *http.Request) {
			<-r.Context().Done()
			idempotency.Decide(r.Context(), idempotency.Free)
		}},
		"the handler does not know": {meanwhile: func(_ *stream, r *http.Request) {
			<-r.Context().Done()
			idempotency.Decide(r.Context(), idempotency.Unknown)
		}},
		"the server breaks off": {meanwhile: func(*stream, *http.Request) { panic(http.ErrAbortHandler) }},
	} {
		for cut := range pieces + 1 {
			t.Run(fmt.Sprintf("%s after %d", name, cut), func(t *testing.T) {
				t.Parallel()
				s := newStream(t, cut, row.meanwhile)
				seen := s.askFor(cut)
				close(s.left)
				if row.lost {
					s.loseTheRecord()
				}
				whole, replayed := s.askUntilWhole()
				require.Equal(t, row.replayed, replayed)
				require.Equal(t, pieces, strings.Count(whole, "\n"), whole)
				require.Equal(t, replayed, strings.HasPrefix(whole, seen) && s.runs.Load() == 1, "%q after %q", whole, seen)
				if !replayed {
					require.EqualValues(t, 2, s.runs.Load())
				}
			})
		}
	}
}

// waitForHangUp waits until the client has hung up, and ignores the end of the context.
func waitForHangUp(s *stream, _ *http.Request) { <-s.left }

// stream is a service whose first answer is cut after a number of pieces.
type stream struct {
	t     *testing.T
	store *idempotency.MemoryStore
	svc   *testservice.Service
	left  chan struct{} // closed when the client has hung up
	runs  atomic.Int64
}

func newStream(t *testing.T, cut int, meanwhile func(*stream, *http.Request)) *stream {
	s := &stream{t: t, store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), left: make(chan struct{})}
	s.svc = testservice.Setup{Store: s.store, Opts: idempotency.Options{Stream: true, Lease: time.Second}}.Serve(t,
		func(w http.ResponseWriter, r *http.Request) {
			run := s.runs.Add(1)
			w.WriteHeader(http.StatusOK)
			for i := range pieces + 1 {
				_ = http.NewResponseController(w).Flush()
				if run == 1 && i == cut {
					meanwhile(s, r)
				}
				if i < pieces {
					fmt.Fprintf(w, "piece %d of run %d\n", i, run)
				}
			}
		})
	return s
}

// request sends the request, and returns the answer before its body is read.
func (s *stream) request() *http.Response {
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.svc.Server.URL, nil)
	require.NoError(s.t, err)
	r.Header.Set("Idempotency-Key", "1")
	resp, err := s.svc.Server.Client().Do(r)
	require.NoError(s.t, err)
	return resp
}

// askFor hangs up after cut pieces, and returns the received bytes.
func (s *stream) askFor(cut int) (seen string) {
	resp := s.request()
	reader := bufio.NewReader(resp.Body)
	for range cut {
		piece, err := reader.ReadString('\n')
		require.NoError(s.t, err)
		seen += piece
	}
	require.NoError(s.t, resp.Body.Close())
	return seen
}

// askUntilWhole repeats the request until the answer is whole.
func (s *stream) askUntilWhole() (whole string, replayed bool) {
	require.Eventually(s.t, func() bool {
		resp := s.request()
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		whole, replayed = string(body), resp.Header.Get("Idempotent-Replayed") == "true"
		return err == nil && resp.StatusCode == http.StatusOK
	}, 30*time.Second, 20*time.Millisecond)
	return whole, replayed
}

// loseTheRecord makes the store lose the record as soon as the answer is stored.
func (s *stream) loseTheRecord() {
	require.Eventually(s.t, func() bool {
		found, err := s.store.List(s.t.Context(), idempotency.ListRequest{})
		require.NoError(s.t, err)
		if len(found.Entries) != 1 || found.Entries[0].State != idempotency.StateCompleted {
			return false
		}
		require.NoError(s.t, s.store.Forget(s.t.Context(), found.Entries[0]))
		return true
	}, 30*time.Second, 20*time.Millisecond)
}
