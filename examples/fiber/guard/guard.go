// Package guard makes handlers of fiber safe to retry. It is a recipe on [idempotency.Runner]: copy it, and change what
// your service does differently.
//
// Mount it inside authentication and on the routes that need it. The error handler of the app runs within the
// recording, so what is kept is what the client gets. It is kept whole, in memory: a stream is sent once it has come to
// its end, and its trailers become fields of the header.
//
// The context of fasthttp does not end when a client leaves, and neither does that of fiber. So the handler goes on,
// and a retry gets its answer. [fiber.Ctx.Context] has the operation, for [idempotency.FromContext] and
// [idempotency.Decide], and ends if the claim is lost. The verdict Keep makes no difference to an answer that is not
// storable.
//
// fiber's timeout middleware goes around the guard. When the time is up, it writes to the response that the handler may
// still be writing to. So an answer that comes after the deadline of the context is neither sent nor kept. Its outcome
// is unknown, and RunnerOptions.Abandoned decides about a retry. So it does after Drop, and after a stream that breaks
// off.
package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/valyala/fasthttp"

	"github.com/idempotency-go/idempotency"
)

// New returns a middleware for app. The handlers after it run once for each Idempotency-Key of a POST or PATCH. Account
// returns the ID of the authenticated caller. Requests without a key pass untouched.
func New(app *fiber.App, runner *idempotency.Runner, account func(fiber.Ctx) string) (fiber.Handler, error) {
	if cfg := app.Config(); cfg.StreamRequestBody || !cfg.DisablePreParseMultipartForm {
		return nil, errors.New("guard: set DisablePreParseMultipartForm, and not StreamRequestBody: " +
			"else fiber does not show request bodies as they were sent")
	}
	return func(c fiber.Ctx) error {
		values := copied(c.Request().Header.PeekAll("Idempotency-Key"))
		if len(values) == 0 || c.Method() != fiber.MethodPost && c.Method() != fiber.MethodPatch {
			return c.Next()
		}
		id, err := idempotency.ParseKey(values)
		if refusal, ok := errors.AsType[*idempotency.Error](err); ok {
			return refuse(c, refusal)
		}
		key := idempotency.Key{
			User:     strings.Clone(account(c)), // fasthttp uses the memory of its strings again
			Endpoint: c.Method() + " " + string(c.Request().URI().PathOriginal()),
			ID:       id,
		}
		if key.User == "" {
			return fiber.ErrUnauthorized
		}
		outside := c.Context()
		outer := fasthttp.AcquireResponse() // what middleware outside has set
		defer fasthttp.ReleaseResponse(outer)
		c.Response().CopyTo(outer)
		work := func(ctx context.Context) (idempotency.Response, error) { return record(ctx, c, outer) }
		resp, replayed, err := runner.Do(outside, key, payload(c), work)
		if timedOut(c, outside) {
			return outside.Err() // nil if the timeout middleware is inside, and has answered
		}
		outer.CopyTo(c.Response())
		if refusal, ok := errors.AsType[*idempotency.Error](err); ok {
			return refuse(c, refusal)
		}
		if err != nil && err != errNotKept {
			return err
		}
		if replayed {
			c.Set("Idempotent-Replayed", "true")
		}
		return send(c, resp)
	}, nil
}

var errNotKept = errors.New("guard: the answer is not kept")

// copied returns values in memory of their own. That of fasthttp serves other requests later.
func copied(values [][]byte) (own []string) {
	for _, value := range values {
		own = append(own, string(value))
	}
	return own
}

// payload returns what tells a request from others with its key. Quotes keep the parts apart.
func payload(c fiber.Ctx) []byte {
	media, _, _ := strings.Cut(c.Get("Content-Type"), ";")
	query, encoding := c.Request().URI().QueryString(), c.Get("Content-Encoding")
	return append(fmt.Appendf(nil, "%q %q %q ", query, strings.ToLower(media), encoding), c.BodyRaw()...)
}

// record runs the handlers and returns their answer. Of the header it has what differs from outer.
func record(ctx context.Context, c fiber.Ctx, outer *fasthttp.Response) (resp idempotency.Response, err error) {
	outside := c.Context()
	c.SetContext(ctx)
	defer func() {
		if !timedOut(c, outside) {
			c.SetContext(outside)
		}
	}()
	err = c.Next()
	if timedOut(c, outside) {
		idempotency.Decide(ctx, idempotency.Unknown)
		return resp, errNotKept
	}
	if err != nil && c.App().ErrorHandler(c, err) != nil {
		_ = c.SendStatus(http.StatusInternalServerError) // as fiber does
	}
	var body bytes.Buffer
	if err := c.Response().BodyWriteTo(&body); err != nil {
		idempotency.Decide(ctx, idempotency.Unknown) // a stream that broke off
		return resp, err
	}
	before, after := fields(outer), fields(c.Response())
	for name, values := range before {
		now, kept := after[name]
		switch {
		case slices.Equal(values, now):
			delete(after, name)
		case !kept:
			after[name] = nil // deleted
		}
	}
	resp = idempotency.Response{
		Status: c.Response().StatusCode(), Header: idempotency.NewFields(after), Body: body.Bytes(),
	}
	switch {
	case dropped(c, &resp):
		idempotency.Decide(ctx, idempotency.Unknown)
		return resp, errNotKept
	case !idempotency.DefaultStorable(&resp):
		return resp, errNotKept
	default:
		return resp, nil
	}
}

// dropped reports whether the handler has closed the connection without an answer, by Drop. End closes it after one.
func dropped(c fiber.Ctx, resp *idempotency.Response) bool {
	untouched := resp.Status == http.StatusOK && len(resp.Body) == 0
	return untouched && c.RequestCtx().Conn().SetWriteDeadline(time.Time{}) != nil
}

// timedOut reports whether c may be in use by the timeout middleware, or by a handler that it has given up.
func timedOut(c fiber.Ctx, outside context.Context) bool {
	return c.IsAbandoned() || outside.Err() != nil
}

// fields returns a copy of the header, without what belongs to the connection.
func fields(resp *fasthttp.Response) http.Header {
	header := make(http.Header)
	for name, value := range resp.Header.All() {
		header.Add(string(name), string(value))
	}
	for _, name := range []string{"Connection", "Content-Length", "Trailer"} {
		header.Del(name)
	}
	return header
}

// send answers with resp.
func send(c fiber.Ctx, resp idempotency.Response) error {
	for name, values := range resp.Header.Header() {
		c.Response().Header.Del(name)
		for _, value := range values {
			c.Response().Header.Add(name, value)
		}
	}
	return c.Status(resp.Status).Send(resp.Body)
}

// refuse answers with problem details.
func refuse(c fiber.Ctx, refusal *idempotency.Error) error {
	return adaptor.HTTPHandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		idempotency.WriteProblem(w, r, refusal)
	})(c)
}
