// Fiber guards the routes of an app on fiber with the recipe in package guard, because fiber does not use net/http. The
// program ends with the line
//
//	operations: 2, requests: 6, charges: 2
package main

import (
	"crypto/sha256"
	"encoding/base64"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/basicauth"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/fiber/guard"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

func main() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{})
	demo.Check(err)
	var shop demo.Shop
	charge := func(c fiber.Ctx) error {
		id := shop.Charge()
		c.Location(c.Path() + "/" + id)
		return c.Status(fiber.StatusCreated).SendString("charge " + id)
	}

	app := fiber.New(fiber.Config{DisablePreParseMultipartForm: true})
	secret := sha256.Sum256([]byte("secret"))
	app.Use(basicauth.New(basicauth.Config{ // authentication goes outside
		Users: map[string]string{"alice": "{SHA256}" + base64.StdEncoding.EncodeToString(secret[:])},
	}))
	once, err := guard.New(app, runner, func(c fiber.Ctx) string { return basicauth.UsernameFromContext(c) })
	demo.Check(err)

	// On one route.
	app.Post("/payments", once, charge)

	// On a group of routes. The key is bound to the path that the client asked for, /v1/refunds.
	v1 := app.Group("/v1", once)
	v1.Post("/refunds", charge)

	listener := demo.Listen()
	go app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true})
	shop.VisitServer(listener.Addr(), "/payments", "/v1/refunds")
	demo.Check(app.Shutdown())
}
