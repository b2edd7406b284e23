// Package network tests the promises of the stores while a network loses, cuts and delays messages.
//
// # One message after the other
//
// A scenario is a few requests over HTTP to one or two servers, for example a first execution, a replay, or a retry after a
// crash. The scenario first runs without a fault, while a proxy in front of the store counts flights. A flight is a request to the
// store with its reply. Then the scenario runs once for every flight and every fault:
//
//   - the request or its reply is lost, cut off in the middle, or delayed;
//   - the request or its reply is held until the client has given up, or until the end of the scenario;
//   - an outage begins with the flight.
//
// The messages include those that open a connection and those of a step in a transaction. Every message gets every fault, so no
// message can be forgotten.
//
// In the end, a retry must get the same answer as every other client, and the operation must have had one effect. No key may stay
// claimed or locked, and no work may continue in the background.
//
// # A partition
//
// A server that has claimed a key is cut off from the store while its handler runs, because the packets between two network
// namespaces vanish. These tests need Linux with /dev/net/tun, and root or CAP_NET_ADMIN and CAP_SYS_ADMIN. Without these, the
// tests are skipped, or fail if IDEMPOTENCY_CI is set and IDEMPOTENCY_NO_NETNS is not set.
package network
