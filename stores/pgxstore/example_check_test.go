package pgxstore_test

import (
	"context"
	"errors"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// A service passes over two findings: a server for development may run without fsync, and a job with another role calls
// Maintain. Any other finding ends the program.
func ExampleTable_Check() {
	var pool *pgxpool.Pool
	store := pgxstore.New(pool, pgxstore.Options{})
	for _, finding := range idempotency.Findings(store.Check(context.Background())) {
		if unsafe, ok := errors.AsType[*idempotency.UnsafeSetting](finding); ok && unsafe.Setting == "fsync" {
			log.Print(finding)
			continue
		}
		if lack, ok := errors.AsType[*pgxstore.MissingPrivilege](finding); ok && lack.For == "Maintain" {
			continue
		}
		log.Fatal(finding)
	}
}
