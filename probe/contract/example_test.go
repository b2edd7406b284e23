package contract_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/probe/contract"
)

// A new operation without a key and without a reason fails the build.
func ExampleTest() {
	test := func(t *testing.T) {
		contract.Test(t, "openapi.yaml", contract.Options{
			URL:        "http://localhost:8080", // without it, only the description is read
			Authorize:  func(r *http.Request) { r.Header.Set("Authorization", "Bearer token") },
			Exceptions: map[string]string{"POST /search": "only reads"},
		})
	}
	_ = test // go test calls it as TestOperationsTakeKeys
}

func ExampleCheck() {
	report, err := contract.Check(context.Background(), "testdata/openapi.yaml", contract.Options{
		Exceptions: map[string]string{"POST /search": "only reads"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, operation := range report.Operations {
		for _, finding := range operation.Findings {
			fmt.Println(operation.Name, finding)
		}
	}
	// Output:
	// POST /forgotten declares no Idempotency-Key, and is no exception
	// POST /lax documents no refusal of a key: 409 or 422
	// POST /lax requires Idempotency-Key, and documents no 400 for a request without it
}

func ExampleReadExceptions() {
	exceptions, err := contract.ReadExceptions(strings.NewReader("# reviewed in May\nPOST /search: only reads\n"))
	fmt.Println(exceptions["POST /search"], err)
	// Output: only reads <nil>
}

// The components of a description follow the options of the service.
func ExampleComponents() {
	components, err := contract.Components(idempotency.Options{Required: true, TTL: 7 * 24 * time.Hour})
	if err != nil {
		fmt.Println(err)
		return
	}
	for line := range strings.Lines(string(components)) {
		if strings.Contains(line, "required: true") || strings.Contains(line, "7 days") {
			fmt.Println(strings.TrimSpace(line))
			break
		}
	}
	// Output: required: true
}
