// Package message finds the key of a call in a field of its message, for services of Connect whose clients send no header.
// Copy the package.
package message

import (
	"errors"
	"mime"
	"net/http"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/idempotency-go/idempotency/fingerprint/keyfrom"
)

// Message is the pointer to a generated message T.
type Message[T any] interface {
	*T
	proto.Message
}

// Key returns the Source of the keys that get reads from the messages of unary calls. An empty key means that the message
// has no key. Mount the guard on the procedures with this message only:
//
//	keyfrom.New(store, user, opts, message.Key((*paymentsv1.ChargeRequest).GetRequestId))
//
// Calls of gRPC and gRPC-Web need their key in the header, because their bodies are no plain messages. Set Required, so that
// a call without a key is refused.
func Key[T any, M Message[T]](get func(M) string) keyfrom.Source {
	return keyfrom.Body(func(r *http.Request, body []byte) (string, error) {
		media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if media != "application/proto" && media != "application/json" {
			return "", nil
		}
		if coding := r.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
			return "", errors.New("the key is in a compressed message")
		}
		message, decode := M(new(T)), proto.Unmarshal
		if media == "application/json" {
			decode = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal
		}
		err := decode(body, message)
		return get(message), err
	})
}
