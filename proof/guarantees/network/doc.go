// Package network holds tests that try to break the promises of the stores by what a network does to messages.
//
// # One message after the other
//
// A scenario is a few requests over HTTP to one server or two, such as a first execution, a replay, or a retry after a
// crash. It runs once without a fault. A proxy in front of the store counts its flights: a flight is a request to the store
// with its reply. Then the scenario runs once for every flight and every fault:
//
//   - the request or its reply is lost, cut off in the middle, or delayed;
//   - one of them is held until the client has given up, or until all is over;
//   - an outage begins with the flight.
//
// No message is chosen by hand, so none is forgotten. Those that open a connection, and those of a step in a
// transaction, are among them.
//
// In the end a retry must get an answer, the same as every other client, and there must be one effect. Nothing may be
// claimed or locked, and nothing may go on in the background.
//
// # A partition
//
// A server that has claimed a key is cut off from the store while its handler runs: the packets between two network
// namespaces vanish. This needs Linux with /dev/net/tun, and root or CAP_NET_ADMIN and CAP_SYS_ADMIN. Elsewhere the test
// is skipped. If IDEMPOTENCY_CI is set it fails instead, unless IDEMPOTENCY_NO_NETNS is set too.
package network
