package fiberidempotency_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/basicauth"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/fiberidempotency"
)

// The route has the middleware before the handler. A retry gets the first answer, and the handler does not run.
func Example() {
	idem, err := idempotency.New(
		idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	charges := 0
	createPayment := func(c fiber.Ctx) error {
		charges++
		return c.Status(fiber.StatusCreated).JSON(fiber.Map{"payment": charges})
	}
	app := fiber.New(fiber.Config{DisablePreParseMultipartForm: true}) // so that fiber shows bodies as they were sent
	once, err := fiberidempotency.Middleware(app, idem)
	if err != nil {
		log.Fatal(err)
	}
	app.Post("/payments", once, createPayment)

	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", nil)
		r.Header.Set("Idempotency-Key", "order-1")
		resp, err := app.Test(r)
		if err != nil {
			log.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		fmt.Println(resp.StatusCode, string(body), resp.Header["Idempotent-Replayed"])
	}
	// Output:
	// 201 {"payment":1} []
	// 201 {"payment":1} [true]
}

// Authentication is outside, and the user function finds the caller in the context of fiber.
func ExampleContext() {
	user := func(r *http.Request) (string, error) {
		return basicauth.UsernameFromContext(fiberidempotency.Context(r)), nil
	}
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), user, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	app := fiber.New(fiber.Config{DisablePreParseMultipartForm: true})
	app.Use(basicauth.New(basicauth.Config{ // any caller whose password is secret
		Authorizer: func(_, password string, _ fiber.Ctx) bool { return password == "secret" },
	}))
	once, err := fiberidempotency.Middleware(app, idem)
	if err != nil {
		log.Fatal(err)
	}
	app.Group("/v1", once).Post("/cards", func(c fiber.Ctx) error {
		return c.SendString("the card of " + basicauth.UsernameFromContext(c))
	})

	for _, name := range []string{"alice", "bob"} {
		r := httptest.NewRequest(http.MethodPost, "/v1/cards", nil)
		r.SetBasicAuth(name, "secret")
		r.Header.Set("Idempotency-Key", "1")
		resp, err := app.Test(r)
		if err != nil {
			log.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		fmt.Println(string(body))
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
	app := fiber.New()
	app.Get("/payments/status", fiberidempotency.Status(idem))

	r := httptest.NewRequest(http.MethodGet, "/payments/status?method=POST&path=/payments", nil)
	r.Header.Set("Idempotency-Key", "order-1")
	resp, err := app.Test(r)
	if err != nil {
		log.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	fmt.Println(string(body))
	// Output: {"state":"never-seen","instance":"urn:uuid:ca4e60da-6fb5-864c-b367-900239233779"}
}
