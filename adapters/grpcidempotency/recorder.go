package grpcidempotency

import (
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// recorder is the [grpc.ServerTransportStream] of a handler. It holds back the metadata that the handler sets, until its
// answer is stored. It is safe for concurrent use.
type recorder struct {
	method string

	mu      sync.Mutex
	header  metadata.MD
	trailer metadata.MD
	sent    bool // the header, as far as the handler knows
	done    bool // the handler has returned
}

// errHeaderSent is what the stream of grpc-go returns.
var errHeaderSent = status.Error(codes.Internal, "transport: SendHeader called multiple times")

// Method implements grpc.ServerTransportStream.
func (r *recorder) Method() string { return r.method }

// SetHeader implements grpc.ServerTransportStream.
func (r *recorder) SetHeader(md metadata.MD) error { return r.addHeader(md, false) }

// SendHeader implements grpc.ServerTransportStream.
func (r *recorder) SendHeader(md metadata.MD) error { return r.addHeader(md, true) }

func (r *recorder) addHeader(md metadata.MD, send bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sent || r.done {
		return errHeaderSent
	}
	r.header, r.sent = metadata.Join(r.header, md), send
	return nil
}

// SetTrailer implements grpc.ServerTransportStream.
func (r *recorder) SetTrailer(md metadata.MD) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return errHeaderSent
	}
	r.trailer = metadata.Join(r.trailer, md)
	return nil
}

// finish returns what was recorded. Goroutines that the handler has left behind change nothing any more.
func (r *recorder) finish() (header, trailer metadata.MD, sent bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done = true
	delete(r.header, markerKey) // only this package sets it
	return r.header, r.trailer, r.sent
}
