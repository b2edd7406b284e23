// Idempotency-proxy is a reverse proxy that makes requests with an Idempotency-Key safe to send again, in front of a
// service in any language.
//
//	idempotency-proxy -upstream http://127.0.0.1:9000 -store sqlite:/var/lib/proxy/records.db -user-header X-User
//
// The README lists all flags, and says what a client and the service see.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr)) }
