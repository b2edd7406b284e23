// Idempotency-proxy is a reverse proxy in front of a service in any language. The proxy makes requests with an Idempotency-Key safe
// to repeat.
//
//	idempotency-proxy -upstream http://127.0.0.1:9000 -store sqlite:/var/lib/proxy/records.db -user-header X-User
//
// The README describes the requests and answers that clients and the service see, and flags.txt lists all flags. The page
// docs/proxy.md of the repository leads to production.
package main

import "os"

func main() { os.Exit(runProxy(os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr)) }
