// Webhooks receives what the library of Standard Webhooks signs, and delivers until it is told that it has arrived. The
// first process of the service has a bug. The second one is killed when it has booked an event, and before the sender knows.
// Each event is delivered to the third one three times at once, signed with an old secret and a new one. The fourth one
// accepts the new secret only. The records are in a file. It ends with the line
//
//	10 events, 4 processes: 10 failed at first, 10 booked once, 10 answered again from the record, 1 with the old secret refused
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"golang.org/x/sync/errgroup"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/examples/internal/provider"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
	"github.com/idempotency-go/idempotency/webhook"
)

const (
	oldSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	newSecret = "whsec_bmV3IHNlY3JldCwgd2hpY2ggaXMgMjQgYnl0ZXM="
	events    = 10
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if process.IsService() {
		serve(ctx)
		return
	}
	dir, err := os.MkdirTemp("", "webhooks")
	demo.Check(err)
	defer os.RemoveAll(dir)
	demo.Check(os.Setenv("FILE", filepath.Join(dir, "idempotency.db")))
	bank, stop := provider.Start()
	defer stop()
	service := process.New()
	defer service.Stop()
	send := sender{url: service.URL + "/webhooks"}

	service.Start(ctx, "SECRETS="+oldSecret, "BUG=yes")
	failed := 0
	for event := range events {
		if answer := send.attempt(ctx, event, oldSecret); answer.status == http.StatusBadRequest {
			failed++
		}
	}

	service.Start(ctx, "SECRETS="+oldSecret+" "+newSecret, "HALT="+process.Stored)
	var deliveries errgroup.Group
	deliveries.Go(func() error { return send.deliver(ctx, 0, oldSecret) })
	service.AwaitHalt()
	service.Kill()
	fmt.Println("service killed: event 0 is booked, and the sender does not know")

	service.Start(ctx, "SECRETS="+oldSecret+" "+newSecret)
	for i := range 3 * events {
		deliveries.Go(func() error { return send.deliver(ctx, i/3, oldSecret, newSecret) })
	}
	demo.Check(deliveries.Wait())

	service.Start(ctx, "SECRETS="+newSecret)
	replayed := 0
	for event := range events {
		if answer := send.attempt(ctx, event, newSecret); answer.replayed {
			replayed++
		}
	}
	refused := 0
	if send.attempt(ctx, 0, oldSecret).status == http.StatusUnauthorized {
		refused++
	}
	verdict := fmt.Sprintf("%d events, 4 processes: %d failed at first, %d booked once, %d answered again from the record, "+
		"%d with the old secret refused", events, failed, bank.Acts(), replayed, refused)
	fmt.Println(verdict)
	if verdict != "10 events, 4 processes: 10 failed at first, 10 booked once, 10 answered again from the record, "+
		"1 with the old secret refused" {
		log.Fatal("this is broken")
	}
}

// sender sends webhooks as Standard Webhooks asks for.
type sender struct{ url string }

// client connects anew each time: a connection to a process that was killed is of no use.
var client = http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

type answer struct {
	status   int // zero if there is none
	replayed bool
}

// deliver tries until the answer is a success.
func (s sender) deliver(ctx context.Context, event int, secrets ...string) error {
	for ctx.Err() == nil {
		if s.attempt(ctx, event, secrets...).status/100 == 2 {
			return nil
		}
		time.Sleep(50 * time.Millisecond) // others wait for minutes
	}
	return ctx.Err()
}

// attempt signs an event with each secret, and sends it.
func (s sender) attempt(ctx context.Context, event int, secrets ...string) answer {
	id, now := "msg_"+strconv.Itoa(event), time.Now()
	payload := []byte(fmt.Sprintf(`{"type":"invoice.paid","data":{"amount":%d}}`, 100*event))
	var signatures []string
	for _, secret := range secrets {
		signer, err := standardwebhooks.NewWebhook(secret)
		demo.Check(err)
		signature, err := signer.Sign(id, now, payload)
		demo.Check(err)
		signatures = append(signatures, signature)
	}
	r, err := http.NewRequestWithContext(ctx, "POST", s.url, bytes.NewReader(payload))
	demo.Check(err)
	r.Header.Set(standardwebhooks.HeaderWebhookID, id)
	r.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	r.Header.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	resp, err := client.Do(r)
	if err != nil {
		return answer{} // the service is dead
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return answer{resp.StatusCode, resp.Header.Get("Idempotent-Replayed") == "true"}
}

func serve(ctx context.Context) {
	store, err := sqlitestore.Open(ctx, os.Getenv("FILE"), sqlitestore.Options{})
	demo.Check(err)
	secrets := strings.Fields(os.Getenv("SECRETS"))
	hooks, err := webhook.New(store, webhook.Standard("acme", secrets...), idempotency.Options{
		Lease: time.Second, // how long an event is blocked if its process dies; the default is more patient
	})
	demo.Check(err)
	process.Serve(hooks.Handler(http.HandlerFunc(book)))
}

func book(w http.ResponseWriter, r *http.Request) {
	if os.Getenv("BUG") != "" {
		http.Error(w, "what is an invoice?", http.StatusBadRequest)
		return
	}
	op, _ := idempotency.FromContext(r.Context())
	if _, err := provider.Call(r.Context(), provider.Request{Key: op.DownstreamKey("book")}); err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
	}
}
