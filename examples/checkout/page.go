package main

import (
	"embed"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency/client/js"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

//go:embed page
var files embed.FS

// policy lets the page load only its own files, and send requests only to its own server.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// newPageHandler serves the page, and the module with the function sendOnce, by which the page pays.
func newPageHandler() http.Handler {
	root, err := fs.Sub(files, "page")
	demo.Check(err)
	server := http.NewServeMux()
	server.Handle("/", http.FileServerFS(root))
	server.HandleFunc("/idempotency.js", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "idempotency.js", time.Time{}, strings.NewReader(js.Module))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cache-Control", "no-cache")
		server.ServeHTTP(w, r)
	})
}
