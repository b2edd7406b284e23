// Service is a chi service with the usual middleware in the usual order: request ID, tracing, access log, recovery, CORS,
// compression, rate limit, timeout and authentication. Three lines guard its payments. The program also sends requests to the
// service, as a page in a browser and a client without a browser would. The program ends with the line
//
//	first 201, retry 201 replayed, other payment 409, stranger 401, preflight 200, too late 504, then 201; charges: 2
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/go-chi/cors"
	"github.com/go-chi/httplog/v3"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

func main() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: shortenAttr}))
	service, err := newService(logger)
	demo.Check(err)
	sendRequests(service)
}

func newService(logger *slog.Logger) (http.Handler, error) {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})         // the guard, line 1
	idem, err := idempotency.New(store, identifyUser, idempotency.Options{}) // the guard, line 2
	if err != nil {
		return nil, err
	}
	var bank bank

	r := chi.NewRouter()
	r.Use(
		middleware.RequestID,
		otelhttp.NewMiddleware("payments"),
		httplog.RequestLogger(logger, &httplog.Options{Level: slog.LevelDebug, Schema: schema}),
		middleware.Recoverer,
		cors.Handler(cors.Options{
			AllowedOrigins: []string{"https://shop.example"},
			AllowedHeaders: []string{"Authorization", "Content-Type", "Idempotency-Key"},
			ExposedHeaders: []string{"Idempotent-Replayed", "Retry-After"},
		}),
		middleware.Compress(5),
		middleware.Throttle(100),
		middleware.Timeout(timeout),
		authenticateUser,
	)
	r.Get("/payments", bank.countCharges)
	r.With(idem.Handler).Post("/payments", bank.chargeCard) // the guard, line 3
	return r, nil
}

const timeout = time.Second

type userKey struct{}

// authenticateUser stands for your authentication. It admits each request with a known token.
func authenticateUser(next http.Handler) http.Handler {
	users := map[string]string{"Bearer alice-token": "alice"}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, ok := users[r.Header.Get("Authorization")]
		if !ok {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	})
}

// identifyUser returns the user whom authenticateUser has admitted.
func identifyUser(r *http.Request) (string, error) {
	name, _ := r.Context().Value(userKey{}).(string)
	return name, nil
}

// bank charges cards.
type bank struct {
	callCount, chargeCount atomic.Int64
}

// chargeCard charges a card. The second call is the first attempt at the second payment. It simulates a slow card network: it waits
// for the timeout, and returns without a charge.
func (b *bank) chargeCard(w http.ResponseWriter, r *http.Request) {
	if b.callCount.Add(1) == 2 {
		<-r.Context().Done() // the card has not been charged
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]int64{"charge": b.chargeCount.Add(1)})
}

func (b *bank) countCharges(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprint(w, b.chargeCount.Load())
}

// schema and shortenAttr keep the lines of the access log short.
var schema = &httplog.Schema{ResponseStatus: "status", ResponseBytes: "bytes"}

func shortenAttr(_ []string, a slog.Attr) slog.Attr {
	switch a.Key {
	case slog.TimeKey, slog.LevelKey:
		return slog.Attr{}
	case slog.MessageKey:
		request, _, _ := strings.Cut(a.Value.String(), " => ")
		return slog.String("request", request)
	default:
		return a
	}
}

// sendRequests serves service, sends requests as clients do, and prints the answers.
func sendRequests(service http.Handler) {
	listener := demo.Listen()
	server := &http.Server{Handler: service, ReadTimeout: time.Minute}
	go server.Serve(listener)
	c := client{"http://" + listener.Addr().String() + "/payments"}

	first := c.sendPayment("order-1", "4200")
	retry := c.sendPayment("order-1", "4200")
	other := c.sendPayment("order-1", "9900")
	stranger := c.sendRequest("POST", "order-1", "4200", nil)
	preflight := c.sendRequest("OPTIONS", "", "", http.Header{
		"Access-Control-Request-Method": {"POST"}, "Access-Control-Request-Headers": {"authorization,idempotency-key"},
	})
	late := c.sendPayment("order-2", "4200")
	then := c.sendPayment("order-2", "4200")
	charges := c.sendRequest("GET", "", "", token)
	demo.Check(server.Shutdown(context.Background()))

	if !bytes.Equal(first.body, retry.body) {
		demo.Check(fmt.Errorf("the retry got %s, not %s", retry.body, first.body))
	}
	for _, a := range []answer{first, retry, other, stranger, preflight, late, then} {
		if n := len(a.header["Access-Control-Allow-Origin"]); n != 1 {
			demo.Check(fmt.Errorf("an answer with %s allows %d origins", a, n))
		}
	}
	fmt.Printf("first %s, retry %s, other payment %s, stranger %s, preflight %s, too late %s, then %s; charges: %s\n",
		first, retry, other, stranger, preflight, late, then, charges.body)
}

// client sends requests as a page at https://shop.example does. Like a browser, it accepts gzip.
type client struct{ endpoint string }

var token = http.Header{"Authorization": {"Bearer alice-token"}}

func (c client) sendPayment(key, amount string) answer {
	return c.sendRequest("POST", key, amount, token)
}

func (c client) sendRequest(method, key, body string, header http.Header) answer {
	r, err := http.NewRequest(method, c.endpoint, strings.NewReader(body))
	demo.Check(err)
	for name, values := range header {
		r.Header[name] = values
	}
	r.Header.Set("Origin", "https://shop.example")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(r)
	demo.Check(err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	demo.Check(err)
	return answer{resp.StatusCode, resp.Header, text}
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) String() string {
	if a.header.Get("Idempotent-Replayed") == "true" {
		return fmt.Sprint(a.status, " replayed")
	}
	return fmt.Sprint(a.status)
}
