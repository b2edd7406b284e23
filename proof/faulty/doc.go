// Package faulty is a payment service with a hand-written idempotency layer, correct or with one seeded fault. The tests of
// package probe show that the probe finds each fault, and nothing in the correct service.
//
// Records and charges are files of one directory, so that several instances and restarted processes share them.
package faulty
