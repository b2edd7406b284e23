package idempotency_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// An access log says what became of each request. The log stands outside of the middleware, and puts an empty entry into the
// context of the request. Observer and ErrorHandler fill the entry.
func ExampleObserver_accessLog() {
	opts := idempotency.Options{
		Required: true,
		Observer: func(ctx context.Context, e idempotency.Event) {
			if entry, ok := ctx.Value(entryKey{}).(*logEntry); ok {
				entry.event.Store(&e)
			}
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
			if entry, ok := r.Context().Value(entryKey{}).(*logEntry); ok {
				entry.refusal.Store(&e.Code)
			}
			idempotency.WriteProblem(w, r, e)
		},
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	service := accessLog(logger, idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "paid")
	})))

	send := func(method, key, body string) {
		r := httptest.NewRequest(method, "/payments", strings.NewReader(body))
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		service.ServeHTTP(httptest.NewRecorder(), r)
	}
	send("POST", "order-1", "42.00")
	send("POST", "order-1", "42.00")
	send("POST", "order-1", "99.00")
	send("POST", "", "42.00")
	send("GET", "", "")
	// Output:
	// level=INFO msg="POST /payments" outcome=executed operation=f556b87a-e96e-8526-8658-a1c7605dcf9d
	// level=INFO msg="POST /payments" outcome=replayed operation=f556b87a-e96e-8526-8658-a1c7605dcf9d
	// level=INFO msg="POST /payments" outcome=key-reused operation=f556b87a-e96e-8526-8658-a1c7605dcf9d refusal=key-reused
	// level=INFO msg="POST /payments" outcome=rejected refusal=key-missing
	// level=INFO msg="GET /payments"
}

// logEntry is what the middleware tells the access log of a request. The fields are atomic, because a handler may outlive the
// request inside http.TimeoutHandler, and because an answer that is stored late has an event after the request.
type logEntry struct {
	event   atomic.Pointer[idempotency.Event]
	refusal atomic.Pointer[string]
}

type entryKey struct{}

// accessLog logs one line for each request, also after a panic.
func accessLog(logger *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entry := new(logEntry)
		defer func() { logger.InfoContext(r.Context(), r.Method+" "+r.URL.Path, entry.attributes()...) }()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), entryKey{}, entry)))
	})
}

// attributes returns the outcome, the ID of the operation, and the code of a refusal. A request that is not guarded has none of them.
func (e *logEntry) attributes() (attrs []any) {
	if event := e.event.Load(); event != nil {
		attrs = append(attrs, slog.Any("outcome", event.Outcome))
		if event.Operation != uuid.Nil { // the key is valid
			attrs = append(attrs, slog.Any("operation", event.Operation))
		}
	}
	if code := e.refusal.Load(); code != nil {
		attrs = append(attrs, slog.String("refusal", *code))
	}
	return attrs
}

// withoutTime leaves the time out of a line.
func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}
