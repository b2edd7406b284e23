// Package message finds the key of a call in a field of its message, for services of Connect whose clients send no header.
// Copy the package.
package message

import (
	"errors"
	"mime"
	"net/http"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/grpcidempotency"
	"github.com/idempotency-go/idempotency/fingerprint/keyfrom"
)

// Message is the pointer to a generated message T.
type Message[T any] interface {
	*T
	proto.Message
}

// Key returns the Source of the keys that get reads from the messages of unary calls. An empty key means that the message
// has no key. Mount the guard on the procedures with this message only, and compare messages by Fingerprint:
//
//	opts := idempotency.Options{Required: true, Fingerprint: message.Fingerprint[paymentsv1.ChargeRequest]}
//	keyfrom.New(store, user, opts, message.Key((*paymentsv1.ChargeRequest).GetRequestId))
//
// Calls of gRPC and gRPC-Web need their key in the header, because their bodies are no plain messages. Set Required, so that
// a call without a key is refused.
func Key[T any, M Message[T]](get func(M) string) keyfrom.Source {
	return keyfrom.Body(func(r *http.Request, body []byte) (string, error) {
		message, err := decode[T, M](r, body)
		if message == nil || err != nil {
			return "", err
		}
		return get(message), nil
	})
}

// Fingerprint compares messages by their values, because a client that encodes a message anew for a retry may write the
// entries of a map in another order. All other bodies are compared as sent.
func Fingerprint[T any, M Message[T]](r *http.Request, body []byte) (idempotency.Fingerprint, error) {
	message, err := decode[T, M](r, body)
	if err != nil {
		return idempotency.Fingerprint{}, err
	}
	if message != nil {
		body = grpcidempotency.Canonical(message)
	}
	return idempotency.FingerprintRaw(r, body)
}

// decode returns the message of a unary call, or nil if the body is none.
func decode[T any, M Message[T]](r *http.Request, body []byte) (M, error) {
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if media != "application/proto" && media != "application/json" {
		return nil, nil
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		return nil, errors.New("the key is in a compressed message")
	}
	message := M(new(T))
	if media == "application/json" {
		return message, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(body, message)
	}
	return message, proto.Unmarshal(body, message)
}
