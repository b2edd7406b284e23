// Package clocks tests that the promises of this repository hold when clocks jump, and when processes stand still.
//
// # Clocks
//
// The tests load a library into real servers to shift the wall clock (testdata/shim.c; building the library needs a C compiler),
// and package skew shifts the clocks of a Go process. The store must act as if the time had passed.
//
// # Zombies
//
// A test stops a server process with SIGSTOP until its leases have lapsed and other processes have taken over. The stopped
// process then continues. The process must leave the records of its successors unchanged, and the clients must get the stored
// answer or an error.
package clocks
