package compat_test

import (
	"io"
	"net/http"
	"strconv"
	"testing"

	"github.com/gorilla/handlers"
	"github.com/stretchr/testify/require"
)

func TestGorilla(t *testing.T) {
	t.Parallel()
	recovery := handlers.RecoveryHandler(handlers.RecoveryLogger(noPrint{}))
	for name, w := range map[string]wrapped{
		"CompressHandler":        {wrap: around(handlers.CompressHandler), panicked: broken, chatty: true},
		"RecoveryHandler":        {wrap: around(recovery), panicked: "500"},
		"LoggingHandler":         {wrap: around(logging), panicked: broken},
		"CombinedLoggingHandler": {wrap: around(combinedLogging), panicked: broken},
		"all": {
			wrap:     around(logging, handlers.ProxyHeaders, handlers.CORS(), handlers.CompressHandler, recovery),
			panicked: "500",
			chatty:   true, // CompressHandler ends its stream
		},
	} {
		t.Run(name, w.test)
	}
}

type noPrint struct{}

func (noPrint) Println(...any) {}

func logging(next http.Handler) http.Handler { return handlers.LoggingHandler(io.Discard, next) }

func combinedLogging(next http.Handler) http.Handler {
	return handlers.CombinedLoggingHandler(io.Discard, next)
}

// An access log around the middleware shows the answers that clients get.
func TestGorillaAccessLog(t *testing.T) {
	t.Parallel()
	for _, b := range behaviours {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			logged := make(chan handlers.LogFormatterParams, 2)
			s := scenario{handler: plainly(b.handler), outer: around(func(next http.Handler) http.Handler {
				return handlers.CustomLoggingHandler(io.Discard, next, func(_ io.Writer, p handlers.LogFormatterParams) {
					logged <- p
				})
			})}.start(t, true)
			for range 2 {
				got := s.send("key")
				entry := receive(t, logged)
				require.Equal(t, got.status, strconv.Itoa(entry.StatusCode))
				require.Equal(t, len(got.body), entry.Size)
			}
		})
	}
}
