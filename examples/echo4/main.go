// Echo4 guards a route of echo v4. It ends with the line
//
//	requests: 4, charges: 2
package main

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/echo4idempotency"
)

func main() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, user, idempotency.Options{Required: true})
	if err != nil {
		log.Fatal(err) // every fault of the options at once
	}
	e := echo.New()
	e.Use(middleware.BasicAuth(authenticate)) // authentication goes outside
	e.POST("/payments", createPayment, echo4idempotency.Middleware(idem))

	send(e, "order-1", "4200")
	send(e, "order-1", "4200") // the same answer again
	send(e, "order-2", "9900")
	send(e, "order-2", "9900") // so is that of an error
	fmt.Printf("requests: 4, charges: %d\n", charges)
}

var charges int

func createPayment(c echo.Context) error {
	charges++
	var payment struct {
		Amount int `json:"amount"`
	}
	if err := c.Bind(&payment); err != nil {
		return err
	}
	if payment.Amount > 5000 {
		return echo.NewHTTPError(http.StatusPaymentRequired, "declined")
	}
	return c.JSON(http.StatusCreated, payment)
}

func authenticate(name, password string, c echo.Context) (bool, error) {
	c.Set("user", name)
	return password == "secret", nil
}

// user returns the ID of the authenticated caller.
func user(r *http.Request) (string, error) {
	name, _ := echo4idempotency.Context(r).Get("user").(string)
	return name, nil
}

// send is a client.
func send(service http.Handler, key, amount string) {
	r := httptest.NewRequest("POST", "/payments", strings.NewReader(`{"amount":`+amount+`}`))
	r.SetBasicAuth("alice", "secret")
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	service.ServeHTTP(w, r)
	fmt.Printf("%s: %d, replayed: %-4s  %s", key, w.Code, w.Header().Get("Idempotent-Replayed"), w.Body)
}
