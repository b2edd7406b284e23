package idempotency_test

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/idempotency-go/idempotency"
)

func readAllOf(resp *http.Response) (string, error) {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// The file goes to an object storage, under a name that the client chose. What is guarded is the small request that
// makes a document of it.
func ExampleMiddleware_Handler_upload() {
	storage := map[string]string{}
	put := func(_ http.ResponseWriter, r *http.Request) {
		content, _ := io.ReadAll(r.Body)
		storage[r.PathValue("name")] = string(content) // the same name and content again: nothing changes
	}
	commit := func(w http.ResponseWriter, r *http.Request) {
		name := r.FormValue("file")
		if _, found := storage[name]; !found {
			http.Error(w, "the file has not arrived", http.StatusConflict)
			idempotency.Decide(r.Context(), idempotency.Release) // the same key works when it has
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "document of ", storage[name])
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Required: true})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /files/{name}", put) // PUT is not guarded: it needs no key
	mux.Handle("POST /documents", idem.Handler(http.HandlerFunc(commit)))

	send := func(method, path, body string) {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Printf("%s %d %q\n", method, w.Code, strings.TrimSpace(w.Body.String()))
	}
	send("POST", "/documents", "file=scan-1")
	send("PUT", "/files/scan-1", "a page")
	send("PUT", "/files/scan-1", "a page")
	send("POST", "/documents", "file=scan-1")
	send("POST", "/documents", "file=scan-1")
	// Output:
	// POST 409 "the file has not arrived"
	// PUT 200 ""
	// PUT 200 ""
	// POST 201 "document of a page"
	// POST 201 "document of a page"
}

// A form with a file has another boundary each time that a client builds it. FingerprintMultipart leaves it out.
func ExampleFingerprintMultipart() {
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Fingerprint: idempotency.FingerprintMultipart, MaxBody: 20 << 20, MaxBodies: 400 << 20})
	if err != nil {
		panic(err)
	}
	documents := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		file, header, err := r.FormFile("file")
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		defer file.Close()
		fmt.Fprint(w, header.Filename, " ", header.Size)
	}))
	for range 2 {
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		part, err := form.CreateFormFile("file", "scan.png")
		if err != nil {
			panic(err)
		}
		fmt.Fprint(part, "a page")
		form.Close()
		r := httptest.NewRequest("POST", "/documents", &body)
		r.Header.Set("Content-Type", form.FormDataContentType())
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		documents.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body, w.Header()["Idempotent-Replayed"])
	}
	// Output:
	// 200 scan.png 6 []
	// 200 scan.png 6 [true]
}
