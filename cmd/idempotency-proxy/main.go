// Idempotency-proxy is a reverse proxy that makes requests with an Idempotency-Key safe to send again, in front of a
// service in any language. README.md says how to run it.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr)) }
