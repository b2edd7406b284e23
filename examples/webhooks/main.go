// Webhooks is a service that receives events signed by the library of Standard Webhooks, from a sender that repeats each delivery
// until it succeeds. The first process of the service has a bug. The second process is killed after it has booked an event and
// before the sender gets the answer. The third process receives each event three times at once, signed with an old and a new
// secret. The fourth process accepts only the new secret. The records are in a file. The program ends with the line
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
	oldSecret  = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	newSecret  = "whsec_bmV3IHNlY3JldCwgd2hpY2ggaXMgMjQgYnl0ZXM="
	eventCount = 10
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if process.IsService() {
		runService(ctx)
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
	hookSender := sender{endpoint: service.URL + "/webhooks"}

	service.Start(ctx, "SECRETS="+oldSecret, "BUG=yes")
	failed := 0
	for event := range eventCount {
		if answer := hookSender.sendEvent(ctx, event, oldSecret); answer.status == http.StatusBadRequest {
			failed++
		}
	}

	service.Start(ctx, "SECRETS="+oldSecret+" "+newSecret, "HALT="+process.Stored)
	var deliveries errgroup.Group
	deliveries.Go(func() error { return hookSender.deliverEvent(ctx, 0, oldSecret) })
	service.AwaitHalt()
	service.Kill()
	fmt.Println("service killed: event 0 is booked, and the sender does not know")

	service.Start(ctx, "SECRETS="+oldSecret+" "+newSecret)
	for i := range 3 * eventCount {
		deliveries.Go(func() error { return hookSender.deliverEvent(ctx, i/3, oldSecret, newSecret) })
	}
	demo.Check(deliveries.Wait())

	service.Start(ctx, "SECRETS="+newSecret)
	replayed := 0
	for event := range eventCount {
		if answer := hookSender.sendEvent(ctx, event, newSecret); answer.isReplayed {
			replayed++
		}
	}
	refused := 0
	if hookSender.sendEvent(ctx, 0, oldSecret).status == http.StatusUnauthorized {
		refused++
	}
	verdict := fmt.Sprintf("%d events, 4 processes: %d failed at first, %d booked once, %d answered again from the record, "+
		"%d with the old secret refused", eventCount, failed, bank.Acts(), replayed, refused)
	fmt.Println(verdict)
	if verdict != "10 events, 4 processes: 10 failed at first, 10 booked once, 10 answered again from the record, "+
		"1 with the old secret refused" {
		log.Fatal("this is broken")
	}
}

// sender sends webhooks to endpoint, as Standard Webhooks prescribes.
type sender struct{ endpoint string }

// client opens a new connection for each request, because a connection to a killed process is dead.
var client = http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

type answer struct {
	status     int // zero if no answer has arrived
	isReplayed bool
}

// deliverEvent sends event until the answer is a success.
func (s sender) deliverEvent(ctx context.Context, event int, secrets ...string) error {
	for ctx.Err() == nil {
		if s.sendEvent(ctx, event, secrets...).status/100 == 2 {
			return nil
		}
		time.Sleep(50 * time.Millisecond) // real senders wait for minutes
	}
	return ctx.Err()
}

// sendEvent signs event with each of secrets, and sends event once.
func (s sender) sendEvent(ctx context.Context, event int, secrets ...string) answer {
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
	r, err := http.NewRequestWithContext(ctx, "POST", s.endpoint, bytes.NewReader(payload))
	demo.Check(err)
	r.Header.Set(standardwebhooks.HeaderWebhookID, id)
	r.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	r.Header.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	resp, err := client.Do(r)
	if err != nil {
		return answer{} // the service was killed
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return answer{resp.StatusCode, resp.Header.Get("Idempotent-Replayed") == "true"}
}

// runService runs the receiver of events until this process is killed.
func runService(ctx context.Context) {
	store, err := sqlitestore.Open(ctx, os.Getenv("FILE"), sqlitestore.Options{})
	demo.Check(err)
	secrets := strings.Fields(os.Getenv("SECRETS"))
	hooks, err := webhook.New(store, webhook.Standard("acme", secrets...), idempotency.Options{
		Lease: time.Second, // how long an event is blocked after the death of its process; the default is longer
	})
	demo.Check(err)
	process.Serve(hooks.Handler(http.HandlerFunc(bookEvent)))
}

func bookEvent(w http.ResponseWriter, r *http.Request) {
	if os.Getenv("BUG") != "" {
		http.Error(w, "what is an invoice?", http.StatusBadRequest)
		return
	}
	op, _ := idempotency.FromContext(r.Context())
	if _, err := provider.Call(r.Context(), provider.Request{Key: op.DownstreamKey("book")}); err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
	}
}
