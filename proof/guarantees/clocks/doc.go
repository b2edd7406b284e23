// Package clocks shows that no promise of this repository is broken when clocks jump, or when processes stand still.
//
// # Clocks
//
// A library that is loaded into real servers shifts their clocks (testdata/shim.c, which needs a C compiler). Package skew
// shifts those of a Go process. The store must do what it would have done if time had passed.
//
// # Zombies
//
// A server process is stopped by SIGSTOP until its leases have lapsed and others have taken over. Then it goes on. It must
// not change the records of its successors, and its clients must get the stored answer or an error.
package clocks
