package grpcidempotency

import (
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// metadataRecorder is the [grpc.ServerTransportStream] of a guarded handler. The recorder holds back the metadata of the handler
// until the answer is stored. A metadataRecorder is safe for concurrent use.
type metadataRecorder struct {
	fullMethod string

	mu              sync.Mutex
	header          metadata.MD
	trailer         metadata.MD
	headerSent      bool // the handler has called SendHeader
	handlerReturned bool
}

// errHeaderSent has the code and the text of the error by the stream of grpc-go.
var errHeaderSent = status.Error(codes.Internal, "transport: SendHeader called multiple times")

// Method implements grpc.ServerTransportStream.
func (r *metadataRecorder) Method() string { return r.fullMethod }

// SetHeader implements grpc.ServerTransportStream.
func (r *metadataRecorder) SetHeader(md metadata.MD) error { return r.addHeader(md, false) }

// SendHeader implements grpc.ServerTransportStream.
func (r *metadataRecorder) SendHeader(md metadata.MD) error { return r.addHeader(md, true) }

func (r *metadataRecorder) addHeader(md metadata.MD, send bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.headerSent || r.handlerReturned {
		return errHeaderSent
	}
	r.header, r.headerSent = metadata.Join(r.header, md), send
	return nil
}

// SetTrailer implements grpc.ServerTransportStream.
func (r *metadataRecorder) SetTrailer(md metadata.MD) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.handlerReturned {
		return errHeaderSent
	}
	r.trailer = metadata.Join(r.trailer, md)
	return nil
}

// stopRecording returns the recorded metadata. Later calls by goroutines that outlive the handler have no effect.
func (r *metadataRecorder) stopRecording() (header, trailer metadata.MD, sent bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handlerReturned = true
	delete(r.header, replayMarkerKey) // only this package sets it
	return r.header, r.trailer, r.headerSent
}
