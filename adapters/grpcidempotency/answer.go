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

// The header of a replay has this marker.
const (
	replayMarkerKey   = "idempotent-replayed"
	replayMarkerValue = "true"
)

// The stored answer to a call is an idempotency.Response:
//
//   - Status is the HTTP status of the gRPC code.
//   - Header and Trailer are the metadata that the handler has set.
//   - Body is an Any with the message or, for a status of 400 or more, with the google.rpc.Status. Body is empty if the
//     handler has returned no message.

// maxMetadataBytes bounds the stored metadata. The middleware for HTTP has the same bound for the fields of an answer.
const maxMetadataBytes = 64 << 10

// newResponse returns the stored answer, or a tombstone if the body has more than maxBody bytes or the metadata more than
// maxMetadataBytes. Fields of the metadata that NewFields cannot store are left out.
func newResponse(
	code codes.Code, message proto.Message, header, trailer metadata.MD, maxBody int64,
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
	if int64(len(resp.Body)) > maxBody || len(resp.Header)+len(resp.Trailer) > maxMetadataBytes {
		return newTombstone(resp.Status), nil
	}
	return resp, nil
}

// newTombstone returns the stored answer of a call whose answer cannot be replayed.
func newTombstone(status int) idempotency.Response {
	return idempotency.Response{Status: status, Omitted: true}
}

// decodeResponse returns the message or the gRPC error in a stored answer of fullMethod. If the stored answer cannot be decoded,
// the error is an [*idempotency.Error].
func decodeResponse(fullMethod string, resp idempotency.Response) (message any, err error) {
	if len(resp.Body) == 0 && resp.Status < 400 {
		return nil, nil
	}
	var content anypb.Any
	if err := proto.Unmarshal(resp.Body, &content); err != nil {
		return nil, refuseUnreadableRecord(err)
	}
	if resp.Status >= 400 {
		return nil, decodeStatus(&content)
	}
	method := findMethod(fullMethod)
	decoded, err := content.UnmarshalNew()
	switch {
	case errors.Is(err, protoregistry.NotFound), method != nil && content.MessageName() != method.Output().FullName():
		return nil, refuseUnknownType(content.GetTypeUrl())
	case err != nil:
		return nil, refuseUnreadableRecord(err)
	}
	return decoded, nil
}

// storableStatus returns the status of a failure in the form that grpc-go sends. If the status has a text that is invalid UTF-8
// and so cannot be encoded, storableStatus corrects the message and drops the details.
func storableStatus(s *status.Status) *spb.Status {
	stored := s.Proto()
	if _, err := proto.Marshal(stored); err != nil {
		stored.Message, stored.Details = string([]rune(stored.GetMessage())), nil
	}
	return stored
}

// decodeStatus returns the gRPC error in a stored failure, or an [*idempotency.Error] if content cannot be decoded.
func decodeStatus(content *anypb.Any) error {
	var stored spb.Status
	if err := content.UnmarshalTo(&stored); err != nil {
		return refuseUnreadableRecord(err)
	}
	if stored.GetCode() == int32(codes.OK) {
		return refuseUnreadableRecord(errors.New("a failure with the status OK"))
	}
	return status.FromProto(&stored).Err()
}

// asProtoMessage converts v, a message of either Go API of protobuf, as the codec of grpc-go does.
func asProtoMessage(v any) (proto.Message, bool) {
	switch v := v.(type) {
	case proto.Message:
		return v, true
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(v), true
	}
	return nil, false
}
