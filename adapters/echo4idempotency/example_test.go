package echo4idempotency_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/labstack/echo/v4"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/echo4idempotency"
)

// The route has the middleware. The answer that the error handler of echo makes of an error is stored, and a retry gets the
// same answer.
func Example() {
	idem, err := idempotency.New(
		idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	charges := 0
	createPayment := func(c echo.Context) error {
		charges++
		return echo.NewHTTPError(http.StatusPaymentRequired, "card expired")
	}
	e := echo.New()
	e.POST("/payments", createPayment, echo4idempotency.Middleware(idem))

	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", nil)
		r.Header.Set("Idempotency-Key", "order-1")
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		fmt.Print(w.Code, " ", w.Body)
	}
	fmt.Println("charges:", charges)
	// Output:
	// 402 {"message":"card expired"}
	// 402 {"message":"card expired"}
	// charges: 1
}

// Authentication sets the account in the context of echo, and the user function reads the account there.
func ExampleContext() {
	user := func(r *http.Request) (string, error) {
		name, _ := echo4idempotency.Context(r).Get("account").(string)
		return name, nil
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), user, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	authenticate := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			name, _, _ := c.Request().BasicAuth() // and check the password
			c.Set("account", name)
			return next(c)
		}
	}
	e := echo.New()
	e.POST("/cards", func(c echo.Context) error {
		return c.String(http.StatusOK, fmt.Sprint("the card of ", c.Get("account")))
	}, authenticate, echo4idempotency.Middleware(idem))

	for _, name := range []string{"alice", "bob"} {
		r := httptest.NewRequest(http.MethodPost, "/cards", nil)
		r.SetBasicAuth(name, "secret")
		r.Header.Set("Idempotency-Key", "1")
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		fmt.Println(w.Body)
	}
	// Output:
	// the card of alice
	// the card of bob
}

// A client asks what became of its key, without sending the request again.
func ExampleStatus() {
	idem, err := idempotency.New(
		idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	e := echo.New()
	e.GET("/payments/status", echo4idempotency.Status(idem))

	r := httptest.NewRequest(http.MethodGet, "/payments/status?method=POST&path=/payments", nil)
	r.Header.Set("Idempotency-Key", "order-1")
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	fmt.Println(w.Body)
	// Output: {"state":"never-seen","instance":"urn:uuid:ca4e60da-6fb5-864c-b367-900239233779"}
}
