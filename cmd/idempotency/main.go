// Idempotency is a command for support and operators. The command inspects, lists, resolves and forgets the records of a service,
// and describes the operation of an idempotency key.
//
//	export DATABASE_URL=postgres://app@db/shop
//	idempotency inspect --user alice --endpoint 'POST /payments' --key order-1
//
// The README lists all commands. The page for support explains what to do about each result:
// https://github.com/idempotency-go/idempotency/blob/main/docs/support.md
package main

import (
	"os"

	"github.com/redis/go-redis/v9"
)

func main() {
	redis.SetLogger(silentLogger{}) // here because the logger is global, and tests call runProgram concurrently
	os.Exit(runProgram(os.Args[1:], os.LookupEnv, os.Stdin, os.Stdout, os.Stderr))
}
