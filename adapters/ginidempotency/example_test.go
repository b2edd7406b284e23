package ginidempotency_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/gin-gonic/gin"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/ginidempotency"
)

// The route has the middleware before the handler. A retry gets the first answer, and the handler does not run.
func Example() {
	idem, err := idempotency.New(
		idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	charges := 0
	createPayment := func(c *gin.Context) {
		charges++
		c.JSON(http.StatusCreated, gin.H{"payment": charges})
	}
	e := gin.New()
	e.POST("/payments", ginidempotency.Middleware(idem), createPayment)

	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", nil)
		r.Header.Set("Idempotency-Key", "order-1")
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body, w.Header()["Idempotent-Replayed"])
	}
	// Output:
	// 201 {"payment":1} []
	// 201 {"payment":1} [true]
}

// Authentication sets the account in the context of gin, and the user function reads the account there.
func ExampleContext() {
	user := func(r *http.Request) (string, error) { return ginidempotency.Context(r).GetString("account"), nil }
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), user, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	authenticate := func(c *gin.Context) {
		name, _, _ := c.Request.BasicAuth() // and check the password
		c.Set("account", name)
	}
	e := gin.New()
	e.POST("/cards", authenticate, ginidempotency.Middleware(idem), func(c *gin.Context) {
		c.String(http.StatusOK, "the card of "+c.GetString("account"))
	})

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
	e := gin.New()
	e.GET("/payments/status", ginidempotency.Status(idem))

	r := httptest.NewRequest(http.MethodGet, "/payments/status?method=POST&path=/payments", nil)
	r.Header.Set("Idempotency-Key", "order-1")
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	fmt.Println(w.Body)
	// Output: {"state":"never-seen","instance":"urn:uuid:ca4e60da-6fb5-864c-b367-900239233779"}
}
