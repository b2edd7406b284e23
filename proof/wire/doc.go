// Package wire has tests that send bytes to a server and read the bytes that come back: requests of every form over HTTP/1.1
// and HTTP/2, random requests and forged answers, and clients that hang up. They know the library by what it exports.
package wire
