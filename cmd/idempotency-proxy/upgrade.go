package main

import (
	"errors"
	"net/http"
)

// stripUpgrades removes Upgrade from all requests except WebSocket requests. A server may ignore Upgrade (RFC 9110, section 7.8).
// After a switch of protocols, the proxy cannot inspect the connection, and in HTTP/2 the connection would carry unguarded requests.
// A WebSocket is safe because a WebSocket begins with a GET (RFC 6455, section 4.1), which is never guarded.
func stripUpgrades(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || !r.ProtoAtLeast(1, 1) || !isWebSocket(r.Header) {
			r.Header.Del("Upgrade")
		}
		r.Header.Del("HTTP2-Settings")
		next.ServeHTTP(w, r)
	})
}

// isWebSocket reports whether Upgrade names only the WebSocket protocol.
func isWebSocket(header http.Header) bool {
	protocols := header["Upgrade"]
	return len(protocols) == 1 && areAlike(protocols[0], "websocket")
}

// checkProtocolSwitch returns an error if the service switches to a protocol that the client has not requested.
func checkProtocolSwitch(resp *http.Response) error {
	if resp.StatusCode != http.StatusSwitchingProtocols || isWebSocket(resp.Request.Header) && isWebSocket(resp.Header) {
		return nil
	}
	return errors.New("the service switches to a protocol that it was not asked for")
}
