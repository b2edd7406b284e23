package grpcidempotency

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// ClientOptions are the settings of [UnaryClientInterceptor]. The zero value of each field is its default.
type ClientOptions struct {
	// Methods reports whether calls of a method get a key. Nil means [NeedsKey].
	Methods func(fullMethod string) bool
}

// UnaryClientInterceptor returns an interceptor that gives each unary call a key. The key is a random UUID, unless the
// outgoing metadata already has a key ([WithKey]). All attempts of a call have the same key: attempts by the retry policy of a
// service config, attempts by gRPC itself, and attempts by an interceptor after UnaryClientInterceptor in
// [grpc.WithChainUnaryInterceptor].
//
// With a key, a call is safe to repeat if the server guards the method. Any other server ignores the key.
func UnaryClientInterceptor(opts ClientOptions) grpc.UnaryClientInterceptor {
	needsKey := opts.Methods
	if needsKey == nil {
		needsKey = NeedsKey
	}
	return func(
		ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		if !hasOutgoingKey(ctx) && needsKey(method) {
			ctx = metadata.AppendToOutgoingContext(ctx, MetadataKey, uuid.NewString())
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
}

func hasOutgoingKey(ctx context.Context) bool {
	md, _ := metadata.FromOutgoingContext(ctx)
	return len(md.Get(MetadataKey)) > 0
}
