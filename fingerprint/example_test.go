package fingerprint_test

import (
	"bytes"
	"fmt"
	"log"
	"mime/multipart"
	"net/http"
	"net/http/httptest"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
)

// Two ways to write one JSON document have the same fingerprint.
func ExampleJSON() {
	var fingerprints []idempotency.Fingerprint
	for _, body := range []string{`{"amount":4200,"currency":"EUR"}`, `{ "currency": "EUR", "amount": 4200 }`} {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Content-Type", "application/json")
		fp, err := fingerprint.JSON(r, []byte(body))
		if err != nil {
			log.Fatal(err)
		}
		fingerprints = append(fingerprints, fp)
	}
	fmt.Println(fingerprints[0] == fingerprints[1])
	// Output: true
}

// A form with a file has another boundary each time that a client builds it. Multipart leaves it out.
func ExampleMultipart() {
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{Fingerprint: fingerprint.Multipart, MaxBody: 20 << 20, MaxBodies: 400 << 20})
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
