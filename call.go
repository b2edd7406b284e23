package idempotency

import (
	"context"
	"errors"
	"net/http"
	"sync"
)

// call is one request on its way through the handler. It serves other requests afterwards, with its buffers: what the
// handler may keep is apart, in lent.
type call struct {
	m         *Middleware
	next      http.Handler
	r         *http.Request
	body      buffer // of the request
	recorder  recorder
	execution execution
	lent      *lent
}

// lent is what a handler is given, and may keep for as long as it likes.
type lent struct {
	attempt attempt
	writer  writer
	reader  bodyReader
}

var calls = sync.Pool{New: func() any { return new(call) }}

// free takes everything away from the handler, which may have left goroutines behind, and lets the call serve another
// request.
func (c *call) free() {
	if c.lent != nil {
		c.lent.reader.Close()
		c.lent.writer.close()
	}
	body, answer := c.body.reuse(), c.recorder.body.reuse()
	*c = call{body: body, recorder: recorder{body: answer}}
	calls.Put(c)
}

// errGaveUp ends an attempt whose handler heard that its claim may be lost, and returned without a word. To net/http
// that is an answer of 200; but who is told to stop and does says nothing of success.
var errGaveUp = errors.New("idempotency: handler gave up, as its claim may be lost")

// errNotStorable ends an attempt whose answer is sent but not stored, so that it may be tried again.
var errNotStorable = errors.New("idempotency: answer not storable")

// execute answers the request by running the handler.
func (c *call) execute(m *Middleware, next http.Handler, w http.ResponseWriter, r *http.Request) error {
	c.m, c.next, c.r, c.lent = m, next, r, new(lent)
	c.record(w)
	_, err := m.runner.execute(r.Context(), &c.execution, &c.lent.attempt, c.work)
	if err != nil && err != errNotStorable && !c.recorder.live { // errNotStorable comes wrapped if the claim was lost
		c.recorder.discard()
		return err
	}
	c.recorder.send() // if the claim was lost after it went live, there is nothing to add
	return nil
}

// record sets up the recorder.
func (c *call) record(w http.ResponseWriter) {
	rec := &c.recorder
	rec.w, rec.r, rec.passing, rec.limit = w, c.r, c.m.passing, c.m.opts.MaxResponse
	if outer := w.Header(); len(outer) > 0 {
		rec.before = outer.Clone()
	}
	if c.execution.held.claim == nil || c.execution.leased() {
		rec.stream, rec.owner = c.m.opts.Stream, c
	} // else the effects are bound to the record: not a byte may go out before it is stored, however many there are
	c.lent.writer.outer, c.lent.writer.rec = w, rec
}

// work runs the handler. It is called at most once: for the owner of the operation, or with FailOpen for nobody.
func (c *call) work(ctx context.Context) (Response, error) {
	defer c.interrupt()
	r := c.r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		c.lent.reader.unread = c.body.b
		r.Body = &c.lent.reader
	}
	c.next.ServeHTTP(&c.lent.writer, r)
	c.r.MultipartForm = r.MultipartForm // so that the server removes its files

	resp, whole, silent := c.lent.writer.finish()
	switch {
	case silent && context.Cause(ctx) == ErrClaimLost:
		return resp, errGaveUp
	case c.recorder.refused != nil:
		return resp, c.recorder.refused
	case !whole || !c.m.opts.Storable(resp.Status):
		return resp, errNotStorable
	case int64(len(resp.Body)) > c.m.opts.MaxResponse:
		resp.Body, resp.Omitted = nil, true
	}
	resp.Trailer = c.m.passing.strip(resp.Trailer)
	return resp, nil
}

// interrupt ends the recording before the claim is settled if the handler does not return.
func (c *call) interrupt() {
	if c.lent.writer.close() {
		c.recorder.discard()
	}
}

// outgrown is called before an answer is sent that cannot be kept whole.
func (c *call) outgrown(resp Response) error {
	if c.execution.held.claim == nil || c.m.opts.Stream || !c.m.opts.Storable(resp.Status) {
		return nil
	}
	return c.execution.complete(resp)
}
