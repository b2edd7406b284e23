package grpcidempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idempotency-go/idempotency"
)

// UserFunc returns the ID of the authenticated caller of a call. Different users never share a key. An error or an empty
// ID refuses the call with UNAUTHENTICATED. If the error has a status of gRPC, that is the answer: for example
// UNAVAILABLE if authentication is down.
type UserFunc func(context.Context) (string, error)

// SingleUser is the UserFunc of a service that has one caller only, or cannot tell its callers apart. If there are
// several, they share their keys, and one may get the answer to another.
func SingleUser(context.Context) (string, error) { return "single", nil }

// Options are the settings of an [Interceptor]. The zero value of each field is its default.
type Options struct {
	// Required refuses calls without a key, with INVALID_ARGUMENT. By default they reach the handler untouched.
	Required bool

	// Methods reports which methods are guarded. Calls of other methods reach the handler untouched, with or without a
	// key. Nil means [NeedsKey].
	Methods func(fullMethod string) bool

	// ValidateKey returns an error for keys that are not accepted. The client sees the text of the error. Nil accepts
	// every key. See [idempotency.ValidateUUID].
	ValidateKey func(id string) error

	// Fingerprint returns what distinguishes a call from other calls with its key. It leaves out what differs between
	// repetitions of a call, such as the time at which it was sent. It may add metadata from the context. If its result
	// changes, a repetition looks like another call. Nil means the [Canonical] form of the request. Its error refuses the
	// call with INVALID_ARGUMENT, and the client sees the text.
	Fingerprint func(ctx context.Context, req proto.Message) ([]byte, error)

	// Storable reports whether an error ends the operation. If it does, the error is stored and replayed. After any other
	// error the operation may be tried again. Nil means [DefaultStorable]. [idempotency.Decide] outranks it.
	Storable func(*status.Status) bool

	// MaxResponse is the largest answer that is stored, in bytes. A larger one is sent, and its operation is not run
	// again: repetitions are refused as not replayable. Zero means 1 MiB.
	MaxResponse int64

	// CancelWithClient ends the context of the handler when the client leaves or its deadline passes, as grpc-go does.
	CancelWithClient bool
}

func (o Options) withDefaults() Options {
	o.MaxResponse = cmp.Or(o.MaxResponse, 1<<20)
	if o.Methods == nil {
		o.Methods = NeedsKey
	}
	if o.ValidateKey == nil {
		o.ValidateKey = func(string) error { return nil }
	}
	if o.Fingerprint == nil {
		o.Fingerprint = func(_ context.Context, req proto.Message) ([]byte, error) { return Canonical(req), nil }
	}
	if o.Storable == nil {
		o.Storable = DefaultStorable
	}
	return o
}

// Interceptor makes the unary methods of a server safe to repeat. It is safe for concurrent use.
type Interceptor struct {
	runner *idempotency.Runner
	user   UserFunc
	opts   Options
}

// New returns an Interceptor that runs operations by runner and calls user for the caller of each guarded call. The error
// reports every fault at once.
func New(runner *idempotency.Runner, user UserFunc, opts Options) (*Interceptor, error) {
	var faults []error
	if runner == nil {
		faults = append(faults, errors.New("grpcidempotency: Runner is nil"))
	}
	if user == nil {
		faults = append(faults, errors.New("grpcidempotency: UserFunc is nil: use SingleUser if there is one caller only"))
	}
	if opts.MaxResponse < 0 {
		faults = append(faults, fmt.Errorf("grpcidempotency: MaxResponse is %d: it must not be negative", opts.MaxResponse))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return &Interceptor{runner, user, opts.withDefaults()}, nil
}

// Unary is a [grpc.UnaryServerInterceptor]. It belongs inside of authentication, which tells the users apart, and of
// interceptors that recover from panics or limit rates. See the documentation of this package for what a handler may
// rely on. A call that is guarded twice with the same key runs once.
func (i *Interceptor) Unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	values := metadata.ValueFromIncomingContext(ctx, MetadataKey)
	if len(values) == 0 && !i.opts.Required || !i.opts.Methods(info.FullMethod) {
		return handler(ctx, req)
	}
	key, err := i.key(ctx, info.FullMethod, values)
	if err != nil {
		return nil, err
	}
	if ctx.Value(guardedKey{}) == key {
		return handler(ctx, req)
	}
	message, ok := protoOf(req)
	if !ok {
		return nil, refuse(ctx, notProto(req))
	}
	payload, err := i.opts.Fingerprint(ctx, message)
	if err != nil {
		return nil, refuse(ctx, requestInvalid(err))
	}
	c := &call{Interceptor: i, ctx: ctx, key: key, req: req, handler: handler, recorder: recorder{method: info.FullMethod}}
	return c.answer(payload)
}

// key returns the key of a call. The error is what the client gets.
func (i *Interceptor) key(ctx context.Context, fullMethod string, values []string) (idempotency.Key, error) {
	if len(values) == 0 {
		return idempotency.Key{}, refuse(ctx, keyMissing())
	}
	id, err := idempotency.ParseKey(values)
	if err != nil {
		return idempotency.Key{}, refuse(ctx, refusalFrom(err))
	}
	if err := i.opts.ValidateKey(id); err != nil {
		return idempotency.Key{}, refuse(ctx, keyInvalid(err))
	}
	user, err := i.user(ctx)
	if err != nil || user == "" {
		return idempotency.Key{}, userUnknown(ctx, err)
	}
	return idempotency.Key{User: user, Endpoint: fullMethod, ID: id}, nil
}

// Stream is a [grpc.StreamServerInterceptor]. It refuses calls that have a key, with UNIMPLEMENTED, because a stream is
// not guarded. Without Stream, the client would believe that it is. Streams without a key pass.
func (i *Interceptor) Stream(
	srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	values := metadata.ValueFromIncomingContext(stream.Context(), MetadataKey)
	if len(values) > 0 && i.opts.Methods(info.FullMethod) {
		return status.Errorf(codes.Unimplemented, "%s is a streaming method, which takes no %s: only unary methods are guarded",
			info.FullMethod, MetadataKey)
	}
	return handler(srv, stream)
}
