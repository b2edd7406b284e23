// Package recipes shows how HTTP libraries with retries of their own send an operation that takes effect once. Copy it, and
// change it.
//
// On the client's side, the rule is the same for each: its own retries are off, and [client.Transport] takes their place.
// It keeps the key of a request over all attempts, waits for an operation in progress, and obeys the member "retry" of a
// problem. The libraries cannot do that by themselves: they give up after a 409, or repeat every 409, and none knows
// "never". If the process may die in between, store the key with the order first, and pass it in with each request.
package recipes

import (
	"net/http"
	"strconv"
	"time"

	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/go-resty/resty/v2"
	"github.com/hashicorp/go-retryablehttp"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/client"
)

// patience bounds all attempts of a request and its answer, which may stall. The caller may then send the request again with
// its key.
const patience = 5 * time.Minute

// Resty is for go-resty/resty. Its retries are off unless SetRetryCount is called. A stored key is passed in by
// SetContext(client.WithKey(ctx, key)) of the request.
func Resty(transport *client.Transport) *resty.Client {
	return resty.New().SetTransport(transport).SetTimeout(patience)
}

// Retryable is for hashicorp/go-retryablehttp. A stored key is passed in by NewRequestWithContext(client.WithKey(ctx,
// key), ...).
func Retryable(transport *client.Transport) *retryablehttp.Client {
	c := retryablehttp.NewClient()
	c.HTTPClient = &http.Client{Transport: transport, Timeout: patience}
	c.RetryMax = 0
	c.ErrorHandler = retryablehttp.PassthroughErrorHandler // else the caller gets an error for a last 503
	return c
}

// SDK is for the SDKs in Go that Stainless generates. Those of APIs with keys make one for each call, which Transport
// keeps; for the others, Transport makes it. A stored key is passed in by option.WithHeader("Idempotency-Key", key) of the
// call: that of the context would not replace the key of the SDK. Do not give it to the client, whose calls would share it.
func SDK(transport *client.Transport) []option.RequestOption {
	return []option.RequestOption{
		option.WithHTTPClient(&http.Client{Transport: transport, Timeout: patience}),
		option.WithMaxRetries(0),
	}
}

// TellSDKs is an Options.ErrorHandler for services whose clients use such an SDK as it is, in any language. By itself, it
// makes one key for each call, and repeats 408, 409, 429, 500 or more, and broken connections, twice, with that key, after
// Retry-After. So one call takes effect once. But the SDK also repeats refusals that it must not repeat: the field
// X-Should-Retry stops that. A second call makes a new key, and may take effect again, unless it is given the stored key.
// As two retries are soon used up, set Options.Wait, too: then an operation in progress costs one.
func TellSDKs(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
	again := e.Retry == idempotency.RetrySameKey && e.RetryAfter > 0
	w.Header().Set("X-Should-Retry", strconv.FormatBool(again))
	idempotency.WriteProblem(w, r, e)
}
