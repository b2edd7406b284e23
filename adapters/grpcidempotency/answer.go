package grpcidempotency

import (
	"errors"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	spb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/idempotency-go/idempotency"
)

// The marker in the header of a replay.
const (
	markerKey   = "idempotent-replayed"
	markerValue = "true"
)

// A stored answer is an idempotency.Response. Its status is the HTTP status of the gRPC code. Header and trailer are the
// metadata that the handler has set. The body is an Any with the message or, for a status of 400 or more, with the
// google.rpc.Status. It is empty if the handler has returned no message.

// mostMetadata bounds the metadata that is stored, as the middleware for HTTP bounds the fields of an answer.
const mostMetadata = 64 << 10

// newResponse returns what is stored of an answer. What cannot be stored is left out.
func newResponse(
	code codes.Code, message proto.Message, header, trailer metadata.MD, most int64,
) (idempotency.Response, error) {
	resp := idempotency.Response{Status: httpStatus(code)}
	if message != nil {
		content, err := anypb.New(message)
		if err != nil {
			return resp, err
		}
		if resp.Body, err = proto.Marshal(content); err != nil {
			return resp, err
		}
	}
	resp.Header = idempotency.NewFields(http.Header(header))
	resp.Trailer = idempotency.NewFields(http.Header(trailer))
	if int64(len(resp.Body)) > most || len(resp.Header)+len(resp.Trailer) > mostMetadata {
		return omitted(resp.Status), nil
	}
	return resp, nil
}

// omitted returns what is stored of an answer that cannot be replayed.
func omitted(status int) idempotency.Response {
	return idempotency.Response{Status: status, Omitted: true}
}

// readResponse returns the message or the error of a stored answer of a method. It returns an [*idempotency.Error] if it
// cannot.
func readResponse(fullMethod string, resp idempotency.Response) (message any, err error) {
	if len(resp.Body) == 0 && resp.Status < 400 {
		return nil, nil
	}
	var content anypb.Any
	if err := proto.Unmarshal(resp.Body, &content); err != nil {
		return nil, recordUnreadable(err)
	}
	if resp.Status >= 400 {
		return nil, readStatus(&content)
	}
	method := descriptorOf(fullMethod)
	read, err := content.UnmarshalNew()
	switch {
	case errors.Is(err, protoregistry.NotFound), method != nil && content.MessageName() != method.Output().FullName():
		return nil, typeUnknown(content.GetTypeUrl())
	case err != nil:
		return nil, recordUnreadable(err)
	}
	return read, nil
}

// storedStatus returns what is stored of the status of a failure: what grpc-go sends of it. If it cannot be encoded,
// because a text in it is not UTF-8, its message is corrected, and there are no details.
func storedStatus(s *status.Status) *spb.Status {
	stored := s.Proto()
	if _, err := proto.Marshal(stored); err != nil {
		stored.Message, stored.Details = string([]rune(stored.GetMessage())), nil
	}
	return stored
}

// readStatus returns the error that the client of a failure gets, or why it cannot be read.
func readStatus(content *anypb.Any) error {
	var stored spb.Status
	if err := content.UnmarshalTo(&stored); err != nil {
		return recordUnreadable(err)
	}
	if stored.GetCode() == int32(codes.OK) {
		return recordUnreadable(errors.New("a failure with the status OK"))
	}
	return status.FromProto(&stored).Err()
}

// protoOf returns v as a message of protobuf, in either of its Go APIs, as the codec of grpc-go does.
func protoOf(v any) (proto.Message, bool) {
	switch v := v.(type) {
	case proto.Message:
		return v, true
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(v), true
	}
	return nil, false
}
