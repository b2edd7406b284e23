package grpcidempotency_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/grpcidempotency"
)

// BenchmarkUnary measures the interceptor without gRPC.
func BenchmarkUnary(b *testing.B) {
	runner, err := idempotency.NewRunner(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.RunnerOptions{})
	require.NoError(b, err)
	guard, err := grpcidempotency.New(runner, grpcidempotency.SingleUser, grpcidempotency.Options{})
	require.NoError(b, err)
	info, runs := &grpc.UnaryServerInfo{FullMethod: charge}, 0
	handler := func(context.Context, any) (any, error) { runs++; return &receipt{Value: "charged"}, nil }
	call := func(key string) {
		ctx := metadata.NewIncomingContext(context.Background(), metadata.MD{"idempotency-key": {key}})
		if _, err := guard.Unary(ctx, &amount{Value: 4200}, info, handler); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("first", func(b *testing.B) {
		b.ReportAllocs()
		before, n := runs, 0
		for b.Loop() {
			n++
			call(strconv.Itoa(runs))
		}
		require.Equal(b, n, runs-before)
	})
	b.Run("replay", func(b *testing.B) {
		call("replay")
		before := runs
		b.ReportAllocs()
		for b.Loop() {
			call("replay")
		}
		require.Equal(b, before, runs)
	})
}
