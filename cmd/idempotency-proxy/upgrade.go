package main

import (
	"errors"
	"net/http"
)

// onlyWebSockets takes the wish for another protocol from requests, as a server may ignore it (RFC 9110, section 7.8).
// Behind a switch, nobody looks at what passes: in HTTP/2 that would be requests. A WebSocket is opened by a GET
// (RFC 6455, section 4.1), which is never guarded.
func onlyWebSockets(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || !r.ProtoAtLeast(1, 1) || !isWebSocket(r.Header) {
			r.Header.Del("Upgrade")
		}
		r.Header.Del("HTTP2-Settings")
		next.ServeHTTP(w, r)
	})
}

// isWebSocket reports whether a header names the WebSocket protocol and no other one.
func isWebSocket(header http.Header) bool {
	protocols := header["Upgrade"]
	return len(protocols) == 1 && alike(protocols[0], "websocket")
}

// checkSwitch is an error if the service switches to a protocol that the client has not asked for.
func checkSwitch(resp *http.Response) error {
	if resp.StatusCode != http.StatusSwitchingProtocols || isWebSocket(resp.Request.Header) && isWebSocket(resp.Header) {
		return nil
	}
	return errors.New("the service switches to a protocol that it was not asked for")
}
