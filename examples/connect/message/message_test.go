package message_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/connect/message"
	"github.com/idempotency-go/idempotency/examples/connect/refusal"
	"github.com/idempotency-go/idempotency/fingerprint/keyfrom"
)

const procedure = "/payments.v1.PaymentService/Charge"

// order is the message of a call. A real service has a generated type.
func order(requestID string, cents float64) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		"request_id": structpb.NewStringValue(requestID), "cents": structpb.NewNumberValue(cents),
	}}
}

func requestID(m *structpb.Struct) string { return m.GetFields()["request_id"].GetStringValue() }

// A client sends a call again and again, with the key in the message. The service charges once.
func TestKeyInMessage(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]connect.ClientOption{"protobuf": nil, "JSON": {connect.WithProtoJSON()}} {
		guard, err := keyfrom.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
			idempotency.Options{Required: true, ErrorHandler: refusal.Write, Fingerprint: message.Fingerprint[structpb.Struct]},
			message.Key(requestID))
		require.NoError(t, err)
		charges := 0
		charge := func(_ context.Context, req *connect.Request[structpb.Struct]) (*connect.Response[structpb.Struct], error) {
			charges++
			return connect.NewResponse(req.Msg), nil
		}
		mux := http.NewServeMux()
		mux.Handle(procedure, guard.Handler(connect.NewUnaryHandler(procedure, charge)))
		server := httptest.NewServer(mux)
		t.Cleanup(server.Close)
		call := func(m *structpb.Struct, more ...connect.ClientOption) (*connect.Response[structpb.Struct], error) {
			client := connect.NewClient[structpb.Struct, structpb.Struct](server.Client(), server.URL+procedure, append(more, options...)...)
			return client.CallUnary(t.Context(), connect.NewRequest(m))
		}
		for attempt := range 10 { // the message is a map, which the client encodes in random order
			answer, err := call(order("order-1", 4200))
			require.NoError(t, err, name)
			require.Equal(t, attempt > 0, answer.Header().Get("Idempotent-Replayed") == "true", name)
			require.Equal(t, "order-1", requestID(answer.Msg))
		}
		_, err = call(order("order-1", 9900))
		require.Equal(t, connect.CodeFailedPrecondition, connect.CodeOf(err), name)
		_, err = call(order("", 1))
		require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), name)
		_, err = call(order("order-2", 1), connect.WithSendGzip())
		require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), name)
		require.Equal(t, 1, charges, name)
	}
}
