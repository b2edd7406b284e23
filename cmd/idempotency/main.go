// Idempotency tells what has happened to idempotency keys, for support and operators: it inspects, lists and forgets the
// records that a service keeps. README.md says how to run it, docs/operating.md what for.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.LookupEnv, os.Stdin, os.Stdout, os.Stderr)) }
