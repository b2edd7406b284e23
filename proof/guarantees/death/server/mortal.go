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

// order is where a request wants the server to die.
type order struct {
	key      string
	point    death.Point
	owner    bool        // of the operation; else what it writes is a replay
	recorded bool        // the answer of the owner
	waits    atomic.Bool // the handler, for the lease to be renewed
	over     atomic.Bool // the request, or the life of this process
}

type orderKey struct{}

func orderIn(ctx context.Context) *order { return ctx.Value(orderKey{}).(*order) }

// unharmed is held by the requests that no death may interrupt.
var unharmed sync.RWMutex

// at ends this process, without any chance to clean up, if that is the point of death. Its last words tell the key.
func (o *order) at(point death.Point) {
	if o.point != point {
		return
	}
	unharmed.Lock()
	fmt.Printf("%s %s\n", o.key, point)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// await holds a handler back that is to die at the point, which comes by when its lease is renewed. If that takes too long, it
// dies all the same: it has come as far, and its claim is not settled.
func (o *order) await(ctx context.Context, point death.Point) {
	if o.point == point {
		o.waits.Store(true)
		<-ctx.Done()
		o.at(point)
	}
}

// mortal serves requests that may say where the server is to die.
func mortal(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o := &order{key: r.Header.Get("Idempotency-Key"), point: death.Point(r.Header.Get(death.HeaderDie))}
		if r.Header.Get(death.HeaderUnharmed) != "" {
			unharmed.RLock()
			defer unharmed.RUnlock()
		}
		if after, err := time.ParseDuration(r.Header.Get(death.HeaderAfter)); err == nil {
			time.AfterFunc(after, func() {
				if o.over.CompareAndSwap(false, true) {
					o.at(death.AtRandom)
				}
			})
			defer o.over.Store(true)
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
	if b.order.point == death.Reading {
		_, _ = b.ReadCloser.Read(p[:1])
		b.order.at(death.Reading)
	}
	return b.ReadCloser.Read(p)
}

type mortalStore struct{ idempotency.Store }

func (s mortalStore) Unwrap() idempotency.Store { return s.Store }

func (s mortalStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	o := orderIn(ctx)
	o.at(death.Claiming)
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim == nil || err != nil {
		return record, claim, err
	}
	o.owner = true
	o.at(death.Claimed)
	return record, mortalClaim{killtest.ClaimWithSteps{Claim: claim}, o}, nil
}

type mortalClaim struct {
	killtest.ClaimWithSteps
	order *order
}

func (c mortalClaim) Extend(ctx context.Context, lease time.Duration) error {
	waits := c.order.waits.Load()
	if waits {
		c.order.at(death.RenewingBefore)
	}
	err := c.Claim.Extend(ctx, lease)
	if waits {
		c.order.at(death.RenewedAfter)
	}
	return err
}

func (c mortalClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	c.order.at(death.Completing)
	err := c.Claim.Complete(ctx, resp, ttl)
	if err == nil {
		c.order.recorded = true
		c.order.at(death.Completed)
	}
	return err
}

type mortalWriter struct {
	http.ResponseWriter
	order *order
}

func (w mortalWriter) WriteHeader(status int) {
	w.at(death.Answering, death.Replaying)
	if w.order.owner && !w.order.recorded {
		w.Header().Set(death.HeaderUnrecorded, "true")
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w mortalWriter) Write(p []byte) (int, error) {
	if w.order.point == "" {
		return w.ResponseWriter.Write(p)
	}
	half, _ := w.ResponseWriter.Write(p[:len(p)/2])
	w.flush()
	w.at(death.HalfAnswered, death.HalfReplayed)
	rest, err := w.ResponseWriter.Write(p[half:])
	w.flush()
	w.at(death.Answered, death.Replayed)
	return half + rest, err
}

func (w mortalWriter) flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// at is the first point for the answer of the owner, once it is recorded, and the second one for what others get.
func (w mortalWriter) at(answer, replay death.Point) {
	switch {
	case !w.order.owner:
		w.order.at(replay)
	case w.order.recorded:
		w.order.at(answer)
	}
}
