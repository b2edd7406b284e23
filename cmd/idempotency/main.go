// Idempotency tells support and operators what has happened to an idempotency key: it inspects, lists, resolves and forgets
// the records that a service keeps.
//
//	export DATABASE_URL=postgres://app@db/shop
//	idempotency inspect --user alice --endpoint 'POST /payments' --key order-1
//
// The README lists all commands. What to do with what they show:
// https://github.com/idempotency-go/idempotency/blob/main/docs/support.md
package main

import (
	"os"

	"github.com/redis/go-redis/v9"
)

func main() {
	redis.SetLogger(quiet{}) // not in run: it is one for the process, in which tests call run many times at once
	os.Exit(run(os.Args[1:], os.LookupEnv, os.Stdin, os.Stdout, os.Stderr))
}
