// Gin guards a route of gin. It ends with the line
//
//	requests: 4, charges: 2
package main

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/ginidempotency"
)

func main() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, user, idempotency.Options{Required: true})
	if err != nil {
		log.Fatal(err) // every fault of the options at once
	}
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.Use(gin.BasicAuth(gin.Accounts{"alice": "secret"})) // authentication goes outside
	e.POST("/payments", ginidempotency.Middleware(idem), createPayment)

	send(e, "order-1", "4200")
	send(e, "order-1", "4200") // the same answer again
	send(e, "order-2", "9900")
	send(e, "order-2", "9900") // so is that of an error
	fmt.Printf("requests: 4, charges: %d\n", charges)
}

var charges int

func createPayment(c *gin.Context) {
	charges++
	var payment struct {
		Amount int `json:"amount"`
	}
	switch err := c.ShouldBindJSON(&payment); {
	case err != nil:
		c.JSON(http.StatusBadRequest, gin.H{"error": err.Error()})
	case payment.Amount > 5000:
		c.JSON(http.StatusPaymentRequired, gin.H{"error": "declined"})
	default:
		c.JSON(http.StatusCreated, payment)
	}
}

// user returns the ID of the authenticated caller.
func user(r *http.Request) (string, error) {
	return ginidempotency.Context(r).GetString(gin.AuthUserKey), nil
}

// send is a client.
func send(service http.Handler, key, amount string) {
	r := httptest.NewRequest("POST", "/payments", strings.NewReader(`{"amount":`+amount+`}`))
	r.SetBasicAuth("alice", "secret")
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	service.ServeHTTP(w, r)
	fmt.Printf("%s: %d, replayed: %-4s  %s\n", key, w.Code, w.Header().Get("Idempotent-Replayed"), w.Body)
}
