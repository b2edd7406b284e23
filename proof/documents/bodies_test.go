package documents_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// The client of a stream leaves in the middle. The answer is the part that the handler has written by then, unless
// the handler calls Decide or panics.
func TestHalfAStream(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		end  func(context.Context)
		runs int
	}{
		{"returns", func(context.Context) {}, 1},
		{"decides", func(ctx context.Context) { idempotency.Decide(ctx, idempotency.Unknown) }, 2},
		{"panics", func(context.Context) { panic(http.ErrAbortHandler) }, 2},
	} {
		idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
			idempotency.Options{Stream: true})
		require.NoError(t, err)
		leaving, leave := context.WithCancel(t.Context())
		runs := 0
		stream := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			runs++
			_, _ = io.WriteString(w, "half")
			leave()
			if r.Context().Err() != nil {
				test.end(r.Context())
				return
			}
			_, _ = io.WriteString(w, " and half")
		}))
		var last *httptest.ResponseRecorder
		for _, ctx := range []context.Context{leaving, t.Context()} {
			r := httptest.NewRequestWithContext(ctx, "POST", "/stories", nil)
			r.Header.Set("Idempotency-Key", "1")
			last = httptest.NewRecorder()
			func() {
				defer func() { _ = recover() }()
				stream.ServeHTTP(last, r)
			}()
		}
		require.Equal(t, test.runs, runs, test.name)
		require.Equal(t, test.runs == 2, last.Body.String() == "half and half", test.name)
	}
}
