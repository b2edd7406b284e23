package idempotency_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
)

// signed lets in what the sender has signed. It reads the body, and hands on a request whose body is whole again.
func signed(verify func(body []byte, header http.Header) error, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "the body cannot be read", http.StatusBadRequest)
			return
		}
		if err := verify(body, r.Header); err != nil {
			http.Error(w, "the signature is wrong", http.StatusForbidden)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// webhookOptions are for senders that have the ID of the delivery in a header.
var webhookOptions = idempotency.Options{
	Headers:     []string{"Webhook-Id"}, // X-GitHub-Delivery for GitHub
	Required:    true,
	TTL:         7 * 24 * time.Hour, // longer than the sender tries
	Storable:    func(resp *idempotency.Response) bool { return resp.Status < 300 },
	Fingerprint: byIDOnly,
}

// byIDOnly lets the ID alone tell deliveries apart. A sender may write the same event differently each time.
func byIDOnly(*http.Request, []byte) (idempotency.Fingerprint, error) {
	return sha256.Sum256([]byte("webhook")), nil
}

// eventKey makes the ID of an event the key of its request. It stands inside of signed, which has checked the body.
func eventKey(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var event struct{ ID string }
		if err := errors.Join(err, json.Unmarshal(body, &event)); err != nil {
			http.Error(w, "the body is no event", http.StatusBadRequest)
			return
		}
		r = r.Clone(r.Context())
		r.Header.Set("Idempotency-Key", event.ID) // whatever was sent under this name
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// A delivery that failed is tried again. One that succeeded is answered from the store.
func ExampleOptions_webhook() {
	idem, err := idempotency.New(
		idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, webhookOptions)
	if err != nil {
		panic(err)
	}
	broken := true
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken {
			http.Error(w, "a bug, which will be mended", http.StatusBadRequest)
			return
		}
		body, _ := io.ReadAll(r.Body)
		fmt.Println("booked", string(body))
	})
	endpoint := signed(verifyStandardWebhook, idem.Handler(handler))

	deliver := func(id, body string) {
		r := httptest.NewRequest("POST", "/webhooks", strings.NewReader(body))
		r.Header.Set("Webhook-Id", id)
		r.Header.Set("Webhook-Timestamp", "1700000000")
		r.Header.Set("Webhook-Signature", "v1,"+standardSignature(id+".1700000000."+body))
		w := httptest.NewRecorder()
		endpoint.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	deliver("msg_1", `{"paid":4200}`)
	broken = false
	deliver("msg_1", `{"paid":4200}`)
	deliver("msg_1", `{"paid": 4200}`)
	deliver("", `{"paid":4200}`)
	// Output:
	// 400
	// booked {"paid":4200}
	// 200
	// 200
	// 400
}

// The ID of the event is in the body.
func ExampleOptions_webhookEvent() {
	opts := webhookOptions
	opts.Headers = nil // Idempotency-Key, which eventKey sets
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
	if err != nil {
		panic(err)
	}
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Println("booked", string(body))
	})
	anybody := func([]byte, http.Header) error { return nil } // stands for the check of the signature
	endpoint := signed(anybody, eventKey(idem.Handler(handler)))

	for _, body := range []string{
		`{"id":"evt_1","pending_webhooks":2}`, `{"id":"evt_1","pending_webhooks":1}`, `{"id":"evt_2"}`, `{}`, `no event`,
	} {
		w := httptest.NewRecorder()
		endpoint.ServeHTTP(w, httptest.NewRequest("POST", "/webhooks", strings.NewReader(body)))
		fmt.Println(w.Code)
	}
	// Output:
	// booked {"id":"evt_1","pending_webhooks":2}
	// 200
	// 200
	// booked {"id":"evt_2"}
	// 200
	// 400
	// 400
}

// The same without the middleware: the handler has the event, and asks the Runner.
func ExampleRunner_Do_webhook() {
	runner, err := idempotency.NewRunner(
		idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.RunnerOptions{TTL: 7 * 24 * time.Hour})
	if err != nil {
		panic(err)
	}
	book := func(ctx context.Context, eventID string) error {
		key := idempotency.Key{User: "payment provider", Endpoint: "events", ID: eventID}
		_, _, err := runner.Do(ctx, key, nil, func(context.Context) (idempotency.Response, error) {
			fmt.Println("booked", eventID)
			return idempotency.Response{}, nil
		})
		return err // answer it with 503, and the sender tries again
	}
	for range 2 {
		fmt.Println(book(context.Background(), "evt_1"))
	}
	// Output:
	// booked evt_1
	// <nil>
	// <nil>
}

// verifyStandardWebhook stands for the sender's own library, which also checks the age of the timestamp.
func verifyStandardWebhook(body []byte, h http.Header) error {
	content := h.Get("Webhook-Id") + "." + h.Get("Webhook-Timestamp") + "." + string(body)
	if !hmac.Equal([]byte(h.Get("Webhook-Signature")), []byte("v1,"+standardSignature(content))) {
		return errors.New("wrong signature")
	}
	return nil
}

func standardSignature(content string) string {
	mac := hmac.New(sha256.New, []byte("shared with the sender"))
	mac.Write([]byte(content))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
