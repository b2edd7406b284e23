package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/death"
	"github.com/idempotency-go/idempotency/proof/killtest"
)

// order is the point at which a request kills the server, and the progress of this request.
type order struct {
	key           string
	deathPoint    death.Point
	isOwner       bool        // the request has the claim; otherwise its answer is a replay
	isRecorded    bool        // the store has recorded the answer of the owner
	awaitsRenewal atomic.Bool // the handler waits for a renewal of its lease
	hasEnded      atomic.Bool // the request has ended, or the process is about to die
}

type orderKey struct{}

func orderFrom(ctx context.Context) *order { return ctx.Value(orderKey{}).(*order) }

// unharmedRequests delays every death until the requests with HeaderUnharmed have ended: these requests hold the read lock, and
// a death needs the write lock.
var unharmedRequests sync.RWMutex

// dieAt kills this process with SIGKILL, which prevents any clean-up, if point is the point of death. Before, dieAt prints the
// key and the point.
func (o *order) dieAt(point death.Point) {
	if o.deathPoint != point {
		return
	}
	unharmedRequests.Lock()
	fmt.Printf("%s %s\n", o.key, point)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// awaitDeath blocks a handler that must die at point, a renewal of the lease, because the claim reaches this point in another
// goroutine. If ctx ends before the renewal, awaitDeath kills the process anyway: the handler has come as far, and its claim is
// not settled.
func (o *order) awaitDeath(ctx context.Context, point death.Point) {
	if o.deathPoint == point {
		o.awaitsRenewal.Store(true)
		<-ctx.Done()
		o.dieAt(point)
	}
}

// makeMortal wraps next, and reads from each request where the server must die.
func makeMortal(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o := &order{key: r.Header.Get("Idempotency-Key"), deathPoint: death.Point(r.Header.Get(death.HeaderDie))}
		if r.Header.Get(death.HeaderUnharmed) != "" {
			unharmedRequests.RLock()
			defer unharmedRequests.RUnlock()
		}
		if after, err := time.ParseDuration(r.Header.Get(death.HeaderAfter)); err == nil {
			time.AfterFunc(after, func() {
				if o.hasEnded.CompareAndSwap(false, true) {
					o.dieAt(death.AtRandom)
				}
			})
			defer o.hasEnded.Store(true)
		}
		r = r.WithContext(context.WithValue(r.Context(), orderKey{}, o))
		r.Body = mortalBody{r.Body, o}
		next.ServeHTTP(mortalWriter{w, o}, r)
	})
}

type mortalBody struct {
	io.ReadCloser
	order *order
}

func (b mortalBody) Read(p []byte) (int, error) {
	if b.order.deathPoint == death.Reading {
		_, _ = b.ReadCloser.Read(p[:1])
		b.order.dieAt(death.Reading)
	}
	return b.ReadCloser.Read(p)
}

type mortalStore struct{ idempotency.Store }

func (s mortalStore) Unwrap() idempotency.Store { return s.Store }

func (s mortalStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	o := orderFrom(ctx)
	o.dieAt(death.Claiming)
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim == nil || err != nil {
		return record, claim, err
	}
	o.isOwner = true
	o.dieAt(death.Claimed)
	return record, mortalClaim{killtest.ClaimWithSteps{Claim: claim}, o}, nil
}

type mortalClaim struct {
	killtest.ClaimWithSteps
	order *order
}

func (c mortalClaim) Extend(ctx context.Context, lease time.Duration) error {
	waits := c.order.awaitsRenewal.Load()
	if waits {
		c.order.dieAt(death.RenewingBefore)
	}
	err := c.Claim.Extend(ctx, lease)
	if waits {
		c.order.dieAt(death.RenewedAfter)
	}
	return err
}

func (c mortalClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	c.order.dieAt(death.Completing)
	err := c.Claim.Complete(ctx, resp, ttl)
	if err == nil {
		c.order.isRecorded = true
		c.order.dieAt(death.Completed)
	}
	return err
}

type mortalWriter struct {
	http.ResponseWriter
	order *order
}

func (w mortalWriter) WriteHeader(status int) {
	w.dieAtEither(death.Answering, death.Replaying)
	if w.order.isOwner && !w.order.isRecorded {
		w.Header().Set(death.HeaderUnrecorded, "true")
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w mortalWriter) Write(p []byte) (int, error) {
	if w.order.deathPoint == "" {
		return w.ResponseWriter.Write(p)
	}
	half, _ := w.ResponseWriter.Write(p[:len(p)/2])
	w.flush()
	w.dieAtEither(death.HalfAnswered, death.HalfReplayed)
	rest, err := w.ResponseWriter.Write(p[half:])
	w.flush()
	w.dieAtEither(death.Answered, death.Replayed)
	return half + rest, err
}

func (w mortalWriter) flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// dieAtEither calls dieAt with the point answer if the owner sends its recorded answer, and with the point replay if the
// request is not the owner.
func (w mortalWriter) dieAtEither(answer, replay death.Point) {
	switch {
	case !w.order.isOwner:
		w.order.dieAt(replay)
	case w.order.isRecorded:
		w.order.dieAt(answer)
	}
}
