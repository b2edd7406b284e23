// Package probe runs the probe of this repository, package probe of the root, against services that are correct, and requires
// that the probe finds nothing:
//
//   - a payment service guarded by the library, on each store that outlives a process. The charges are rows of the store, calls
//     of a provider with [idempotency.Operation.DownstreamKey], or, with [idempotency.Refuse], lines of a file.
//   - a payment service without the library, which inserts the key and the charge in one transaction of PostgreSQL.
//   - the proxy, in front of a service that charges for each request.
//   - the checkout of the examples, whose shop is killed as its supervisor would kill it.
//
// The services take different decisions, for example whether a duplicate waits or is refused. Each row of a test names all
// decisions, and another decision fails the row. A row also names the checks that cannot be made, so that no other check is
// left out.
//
//	go test ./proof/guarantees/probe
//
// kills two hundred processes for each service. With the race detector six are killed.
package probe
