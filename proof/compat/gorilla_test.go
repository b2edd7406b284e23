package compat_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/gorilla/handlers"
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
