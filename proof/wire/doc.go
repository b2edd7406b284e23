// Package wire tests the middleware at the level of bytes: the tests send requests of every form to a server over HTTP/1.1
// and HTTP/2, random requests and forged answers, and clients hang up at any byte. The tests use only the exported API
// of the library.
package wire
