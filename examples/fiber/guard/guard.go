// Package guard makes handlers of fiber safe to retry. The package is a recipe on [idempotency.Runner]: copy it, and change
// the parts in which your service differs.
//
// Mount the guard inside authentication, on the routes that need keys. The error handler of the app runs within the recording,
// so the guard stores the same answer that the client gets. The recording keeps the whole answer in memory: a stream is sent
// after its end, and its trailers become fields of the header.
//
// The contexts of fasthttp and of fiber outlive a client that leaves. So the handler goes on, and a retry gets the answer.
// [fiber.Ctx.Context] has the operation, for [idempotency.FromContext] and [idempotency.Decide], and ends if the claim is
// lost. The verdict Keep does not make an answer storable.
//
// Mount fiber's timeout middleware around the guard. When the time is up, the timeout middleware writes to the response, and
// the handler may still be writing, too. So the guard neither sends nor stores an answer after the deadline of the context.
// The outcome is unknown then, and RunnerOptions.Abandoned decides about a retry. The same holds after Drop, and after a
// stream that breaks off.
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

// New returns a middleware for app. The handlers inside run once for each Idempotency-Key of a POST or PATCH. account returns
// the ID of the authenticated caller. Requests without a key pass unchanged.
func New(app *fiber.App, runner *idempotency.Runner, account func(fiber.Ctx) string) (fiber.Handler, error) {
	if cfg := app.Config(); cfg.StreamRequestBody || !cfg.DisablePreParseMultipartForm {
		return nil, errors.New("guard: set DisablePreParseMultipartForm, and not StreamRequestBody: " +
			"else fiber does not show request bodies as they were sent")
	}
	return func(c fiber.Ctx) error {
		values := copyStrings(c.Request().Header.PeekAll("Idempotency-Key"))
		if len(values) == 0 || c.Method() != fiber.MethodPost && c.Method() != fiber.MethodPatch {
			return c.Next()
		}
		id, err := idempotency.ParseKey(values)
		if refusal, ok := errors.AsType[*idempotency.Error](err); ok {
			return sendRefusal(c, refusal)
		}
		key := idempotency.Key{
			User:     strings.Clone(account(c)), // a copy, because fasthttp reuses the memory of its strings
			Endpoint: c.Method() + " " + string(c.Request().URI().PathOriginal()),
			ID:       id,
		}
		if key.User == "" {
			return fiber.ErrUnauthorized
		}
		outside := c.Context()
		if outside.Value(runner) == key { // an outer guard already handles this request
			return c.Next()
		}
		outer := fasthttp.AcquireResponse() // the response of the middleware outside
		defer fasthttp.ReleaseResponse(outer)
		c.Response().CopyTo(outer)
		work := func(ctx context.Context) (idempotency.Response, error) {
			return recordAnswer(context.WithValue(ctx, runner, key), c, outer)
		}
		resp, replayed, err := runner.Do(outside, key, buildPayload(c), work)
		if timedOut(c, outside) {
			return outside.Err() // nil if a timeout middleware inside has answered
		}
		outer.CopyTo(c.Response())
		if refusal, ok := errors.AsType[*idempotency.Error](err); ok {
			return sendRefusal(c, refusal)
		}
		if err != nil && err != errNotKept {
			return err
		}
		if replayed {
			c.Set("Idempotent-Replayed", "true")
		}
		return sendAnswer(c, resp)
	}, nil
}

var errNotKept = errors.New("guard: the answer is not kept")

// copyStrings copies values, because fasthttp reuses their memory for later requests.
func copyStrings(values [][]byte) (copies []string) {
	for _, value := range values {
		copies = append(copies, string(value))
	}
	return copies
}

// buildPayload returns the parts of a request that a retry must repeat. Quotes keep the parts apart.
func buildPayload(c fiber.Ctx) []byte {
	media, _, _ := strings.Cut(c.Get("Content-Type"), ";")
	query, encoding := c.Request().URI().QueryString(), c.Get("Content-Encoding")
	return append(fmt.Appendf(nil, "%q %q %q ", query, strings.ToLower(media), encoding), c.BodyRaw()...)
}

// recordAnswer runs the handlers, and returns their answer with the header fields that differ from outer.
func recordAnswer(ctx context.Context, c fiber.Ctx, outer *fasthttp.Response) (resp idempotency.Response, err error) {
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
		_ = c.SendStatus(http.StatusInternalServerError) // like fiber
	}
	var body bytes.Buffer
	if err := c.Response().BodyWriteTo(&body); err != nil {
		idempotency.Decide(ctx, idempotency.Unknown) // the stream broke off
		return resp, err
	}
	before, after := copyFields(outer), copyFields(c.Response())
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
	case wasDropped(c, &resp):
		idempotency.Decide(ctx, idempotency.Unknown)
		return resp, errNotKept
	case !idempotency.DefaultStorable(&resp):
		return resp, errNotKept
	default:
		return resp, nil
	}
}

// wasDropped reports whether the handler has closed the connection by Drop, without an answer. End, too, closes the connection,
// but after an answer.
func wasDropped(c fiber.Ctx, resp *idempotency.Response) bool {
	untouched := resp.Status == http.StatusOK && len(resp.Body) == 0
	return untouched && c.RequestCtx().Conn().SetWriteDeadline(time.Time{}) != nil
}

// timedOut reports whether the timeout middleware, or a handler abandoned by the timeout middleware, may be using c.
func timedOut(c fiber.Ctx, outside context.Context) bool {
	return c.IsAbandoned() || outside.Err() != nil
}

// copyFields returns a copy of the header without the fields of the connection.
func copyFields(resp *fasthttp.Response) http.Header {
	header := make(http.Header)
	for name, value := range resp.Header.All() {
		header.Add(string(name), string(value))
	}
	for _, name := range []string{"Connection", "Content-Length", "Trailer"} {
		header.Del(name)
	}
	return header
}

// sendAnswer answers with resp.
func sendAnswer(c fiber.Ctx, resp idempotency.Response) error {
	for name, values := range resp.Header.Header() {
		c.Response().Header.Del(name)
		for _, value := range values {
			c.Response().Header.Add(name, value)
		}
	}
	return c.Status(resp.Status).Send(resp.Body)
}

// sendRefusal answers with problem details.
func sendRefusal(c fiber.Ctx, refusal *idempotency.Error) error {
	return adaptor.HTTPHandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		idempotency.WriteProblem(w, r, refusal)
	})(c)
}
