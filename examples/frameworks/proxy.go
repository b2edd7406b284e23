package main

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// behindProxy guards a service without idempotency keys, by a gateway in front of the service.
func behindProxy(idem *idempotency.Middleware, shop *demo.Shop) guarded {
	behind := httptest.NewServer(shop)
	upstream, err := url.Parse(behind.URL)
	demo.Check(err)
	gateway := idem.Handler(newProxy(upstream))
	return guarded{demo.Authenticate(gateway), []string{"/charges"}, behind.Close} // authentication goes outside
}

// newProxy returns a proxy to upstream, which does not know the header Idempotency-Key. The proxy deletes the header, because
// net/http knows it, too: after a broken connection, net/http would repeat a request with a key and without a body.
func newProxy(upstream *url.URL) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(upstream)
			r.Out.Header.Del("Idempotency-Key")
		},
		ErrorHandler: answerFailure,
	}
}

// answerFailure answers in place of a service that did not answer. If no connection was made, the service has done nothing, so a
// retry is safe. If a connection broke, the service may have charged the card, and Options.Abandoned decides about a retry.
func answerFailure(w http.ResponseWriter, r *http.Request, err error) {
	if failure, ok := errors.AsType[*net.OpError](err); ok && failure.Op == "dial" {
		idempotency.Decide(r.Context(), idempotency.Free)
		http.Error(w, "upstream not reached", http.StatusBadGateway)
		return
	}
	idempotency.Decide(r.Context(), idempotency.Unknown)
	http.Error(w, "upstream broke off", http.StatusBadGateway)
}
