// Package recipes shows how HTTP libraries with built-in retries send an operation that takes effect once. Copy the package,
// and change it.
//
// On the client's side, the rule is the same for each library: turn off its own retries, and use [client.Transport] in their
// place. Transport keeps the key of a request over all attempts, waits for an operation in progress, and obeys the member
// "retry" of a problem. The libraries cannot do this by themselves, because they give up after a 409 or repeat every 409, and
// ignore the value "never". If the process may die between attempts, store the key with the order first, and pass the key in
// with each request.
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

// requestTimeout bounds a request with all attempts and its answer, because an answer may stall. After the timeout, the caller
// may send the request again with its key.
const requestTimeout = 5 * time.Minute

// Resty returns a client of go-resty/resty, which retries only after a call of SetRetryCount. Pass a stored key in with
// SetContext(client.WithKey(ctx, key)) of the request.
func Resty(transport *client.Transport) *resty.Client {
	return resty.New().SetTransport(transport).SetTimeout(requestTimeout)
}

// Retryable returns a client of hashicorp/go-retryablehttp. Pass a stored key in with
// NewRequestWithContext(client.WithKey(ctx, key), ...).
func Retryable(transport *client.Transport) *retryablehttp.Client {
	c := retryablehttp.NewClient()
	c.HTTPClient = &http.Client{Transport: transport, Timeout: requestTimeout}
	c.RetryMax = 0
	c.ErrorHandler = retryablehttp.PassthroughErrorHandler // returns a last 503 to the caller, rather than an error
	return c
}

// SDK returns options for the SDKs in Go that Stainless generates. If the API has keys, the SDK makes a key for each call, and
// Transport keeps this key; otherwise Transport makes the key. Pass a stored key in with the option
// option.WithHeader("Idempotency-Key", key) of the call, because a key in the context does not replace the key of the SDK. As
// an option of the client, the key would be shared by all calls.
func SDK(transport *client.Transport) []option.RequestOption {
	return []option.RequestOption{
		option.WithHTTPClient(&http.Client{Transport: transport, Timeout: requestTimeout}),
		option.WithMaxRetries(0),
	}
}

// TellSDKs is an Options.ErrorHandler for services whose clients use an unchanged SDK by Stainless, in any language. The SDK
// makes a key for each call. After 408, 409, 429, 500 or more, and broken connections, the SDK repeats the call twice with the
// same key, after Retry-After. So a call takes effect once. But the SDK also repeats final refusals, unless the field
// X-Should-Retry stops the SDK. A second call has a new key, and may take effect again, unless the caller passes the stored
// key in. Set Options.Wait, too, because two retries are soon used up: with Wait, an operation in progress costs one retry.
func TellSDKs(w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
	mayRetry := e.Retry == idempotency.RetrySameKey && e.RetryAfter > 0
	w.Header().Set("X-Should-Retry", strconv.FormatBool(mayRetry))
	idempotency.WriteProblem(w, r, e)
}
