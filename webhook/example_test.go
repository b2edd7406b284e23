package webhook_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/webhook"
)

// Receivers of several senders share a store. While a secret changes, the old and the new secret are accepted.
func ExampleNew() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{}) // or one that outlives the process
	book := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		fmt.Println("booked", op.Key.User, op.Key.ID)
	})
	mux := http.NewServeMux()
	for path, sender := range map[string]webhook.Sender{
		"/webhooks/github":  webhook.GitHub("new secret", "old secret"), // from your configuration
		"/webhooks/shopify": webhook.Shopify("client secret"),
		"/webhooks/stripe":  webhook.Stripe("whsec_of_this_endpoint"),
	} {
		hooks, err := webhook.New(store, sender, idempotency.Options{})
		if err != nil {
			panic(err)
		}
		mux.Handle("POST "+path, hooks.Handler(book))
	}

	for _, secret := range []string{"old secret", "new secret", "another secret"} {
		body := `{"zen":"Keep it logically awesome."}`
		r := httptest.NewRequest("POST", "/webhooks/github", strings.NewReader(body))
		r.Header.Set("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")
		r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(sign(secret, body)))
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// booked github 72d3162e-cc78-11e3-81ab-4c9367dc0958
	// 200
	// 200
	// 401
}

// A failed delivery runs again. A delivery that has succeeded is answered from the store.
func ExampleStandard() {
	secret := base64.StdEncoding.EncodeToString([]byte("shared with the sender"))
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	quiet := idempotency.Options{Logger: slog.New(slog.DiscardHandler)}
	hooks, err := webhook.New(store, webhook.Standard("acme", "whsec_"+secret), quiet)
	if err != nil {
		panic(err)
	}
	broken := true
	endpoint := hooks.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken {
			http.Error(w, "a bug, which will be mended", http.StatusBadRequest)
			return
		}
		body, _ := io.ReadAll(r.Body)
		fmt.Println("booked", string(body))
	}))

	deliver := func(id, body string) {
		now := strconv.FormatInt(time.Now().Unix(), 10)
		signature := sign("shared with the sender", id+"."+now+"."+body)
		r := httptest.NewRequest("POST", "/webhooks", strings.NewReader(body))
		r.Header.Set("webhook-id", id)
		r.Header.Set("webhook-timestamp", now)
		r.Header.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(signature))
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

// A sender that the package does not know has two tenants, each with a secret of its own.
func ExampleSender() {
	acme := func(tenant, secret string) webhook.Sender {
		return webhook.Sender{
			Name: "acme " + tenant,
			TTL:  3 * 24 * time.Hour,
			Verify: func(header http.Header, body []byte) (string, error) {
				id := header.Get("Acme-Delivery")
				signature, err := hex.DecodeString(header.Get("Acme-Signature"))
				if err != nil || !hmac.Equal(signature, sign(secret, id+string(body))) {
					return "", errors.New("wrong signature")
				}
				return id, nil
			},
		}
	}
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	tenants := map[string]http.Handler{}
	for tenant, secret := range map[string]string{"north": "secret 1", "south": "secret 2"} {
		hooks, err := webhook.New(store, acme(tenant, secret), idempotency.Options{})
		if err != nil {
			panic(err)
		}
		tenants[tenant] = hooks.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			fmt.Println("booked for", tenant)
		}))
	}

	deliver := func(tenant, secret string) {
		r := httptest.NewRequest("POST", "/webhooks/acme", strings.NewReader("paid"))
		r.Header.Set("Acme-Delivery", "1")
		r.Header.Set("Acme-Signature", hex.EncodeToString(sign(secret, "1paid")))
		w := httptest.NewRecorder()
		tenants[tenant].ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	deliver("north", "secret 1")
	deliver("south", "secret 2")
	deliver("south", "secret 1")
	// Output:
	// booked for north
	// 200
	// booked for south
	// 200
	// 401
}

// sign signs content as senders do.
func sign(secret, content string) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(content))
	return mac.Sum(nil)
}
