package grpcidempotency

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// ClientOptions are the settings of [UnaryClientInterceptor]. The zero value of each field is its default.
type ClientOptions struct {
	// Methods reports which methods are called with a key. Nil means [NeedsKey].
	Methods func(fullMethod string) bool
}

// UnaryClientInterceptor returns an interceptor that gives each unary call a key. The key is a random UUID, unless the
// outgoing metadata has one ([WithKey]). All attempts of one call have its key: those of the retry policy of a service
// config, those that gRPC makes by itself, and those of an interceptor that retries, if it stands after this one in
// [grpc.WithChainUnaryInterceptor].
//
// The key makes a call safe to repeat if the server guards the method. A server that does not know keys ignores it.
func UnaryClientInterceptor(opts ClientOptions) grpc.UnaryClientInterceptor {
	needsKey := opts.Methods
	if needsKey == nil {
		needsKey = NeedsKey
	}
	return func(
		ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		if !hasKey(ctx) && needsKey(method) {
			ctx = metadata.AppendToOutgoingContext(ctx, MetadataKey, uuid.NewString())
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
}

func hasKey(ctx context.Context) bool {
	md, _ := metadata.FromOutgoingContext(ctx)
	return len(md.Get(MetadataKey)) > 0
}
