// Package browser has the parts of a guarded service that pages in browsers need. Copy the package, and change it.
package browser

import (
	"bytes"
	_ "embed"
	"io"
	"mime"
	"net/http"
	"net/url"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
)

// PayOnce is the script pay.js, by which a page pays once, however often its requests get lost.
//
//go:embed pay.js
var PayOnce []byte

// CORS lets pages of another origin send keys, and read the fields Idempotent-Replayed and Retry-After. Mount CORS outside of
// the middleware, so that each request gets its own CORS fields, and outside of the router, so that CORS sees OPTIONS.
func CORS(origin string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Add("Vary", "Origin")
		if r.Header.Get("Origin") != origin {
			next.ServeHTTP(w, r)
			return
		}
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", "Idempotent-Replayed, Retry-After")
		if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			h.Set("Access-Control-Allow-Methods", "POST")
			h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Idempotency-Key")
			h.Set("Access-Control-Max-Age", "600")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// FormOptions are the options for HTML forms, with or without files.
var FormOptions = idempotency.Options{
	Required:    true,
	Fingerprint: fingerprint.Multipart, // a browser chooses another boundary each time it sends a form with files
	Wait:        10 * time.Second,      // the second click of a double click waits for the answer to the first one
}

// FormKey makes the hidden field "idempotency-key" of an HTML form the key of its request. A form with files has its key in
// the query of its action instead, because FormKey leaves the body of such a form to the middleware. Mount FormKey outside of
// the middleware. FormKey passes the whole body on.
func FormKey(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if r.Method == http.MethodPost && media == "multipart/form-data" {
			r = r.Clone(r.Context())
			r.Header.Set("Idempotency-Key", r.URL.Query().Get("key"))
			next.ServeHTTP(w, r)
			return
		}
		if r.Method != http.MethodPost || media != "application/x-www-form-urlencoded" {
			next.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "the form cannot be read", http.StatusBadRequest)
			return
		}
		form, _ := url.ParseQuery(string(body)) // the handler reports a malformed form
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.Header.Set("Idempotency-Key", form.Get("idempotency-key"))
		next.ServeHTTP(w, r)
	})
}
