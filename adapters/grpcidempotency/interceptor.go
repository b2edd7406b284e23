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

// UserFunc returns the ID of the authenticated caller. The keys of different users are separate. If UserFunc returns an error or
// an empty ID, the call is refused with UNAUTHENTICATED. If the error has a gRPC status, the call is refused with that status,
// for example UNAVAILABLE while authentication is down.
type UserFunc func(context.Context) (string, error)

// SingleUser is the UserFunc of a service with a single caller, or without any way to tell callers apart. Several callers share
// their keys under SingleUser, so a caller may get the answer to the call of another caller.
func SingleUser(context.Context) (string, error) { return "single", nil }

// Options are the settings of an [Interceptor]. The zero value of each field is its default.
type Options struct {
	// Required refuses calls without a key with INVALID_ARGUMENT. By default, calls without a key reach the handler unguarded.
	Required bool

	// Methods reports whether a method is guarded. Calls of all other methods reach the handler unguarded, with or without a
	// key. Nil means [NeedsKey].
	Methods func(fullMethod string) bool

	// Key returns the key in a field of the request, such as request_id of AIP-155, or "" without a key. Key is called for
	// each call of a guarded method. The metadata may have the key, too: a call with two different keys is refused with
	// INVALID_ARGUMENT. By default, Fingerprint has the field with the key, so a client that repeats a call has to send the
	// key in the same place. Nil means that all keys are in the metadata.
	Key func(ctx context.Context, req proto.Message) string

	// ValidateKey returns an error for an unacceptable key, for example [idempotency.ValidateUUID]. The client sees the text of
	// the error. Nil accepts every key.
	ValidateKey func(id string) error

	// Fingerprint returns the content by which a repetition is recognized. Two calls with the same key and different content are
	// different calls, and the second call is refused. Fingerprint must leave out everything that differs between repetitions,
	// such as the time of sending, and may add metadata from the context. An error refuses the call with INVALID_ARGUMENT, and
	// the client sees the text. Nil means the [Canonical] form of the request.
	Fingerprint func(ctx context.Context, req proto.Message) ([]byte, error)

	// Storable reports whether an error ends the operation. Such an error is stored and replayed. After any other error, the
	// operation may be tried again. [idempotency.Decide] takes precedence over Storable. Nil means [DefaultStorable].
	Storable func(*status.Status) bool

	// MaxResponse is the size of the largest answer to store, in bytes. A larger answer is sent, and repetitions of the call are
	// refused with NOT_REPLAYABLE. Zero means 1 MiB.
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

// Interceptor makes the unary methods of a server safe to repeat. An Interceptor is safe for concurrent use.
type Interceptor struct {
	runner *idempotency.Runner
	userOf UserFunc
	opts   Options
}

// New returns an Interceptor that executes operations with runner. The Interceptor calls user to identify the caller of each
// guarded call. The error reports all faults of the arguments.
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

// Unary is a [grpc.UnaryServerInterceptor]. Chain Unary after authentication, which identifies the users, and after interceptors
// that recover from panics or limit rates. The documentation of the package describes the context and the answer of a guarded
// handler. A second Unary in the chain passes a call that is already guarded with the same key.
func (i *Interceptor) Unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	if !i.opts.Methods(info.FullMethod) {
		return handler(ctx, req)
	}
	message, isProto := asProtoMessage(req)
	sent := sentKeys{inMetadata: metadata.ValueFromIncomingContext(ctx, MetadataKey)}
	if i.opts.Key != nil && isProto {
		sent.inMessage = i.opts.Key(ctx, message)
	}
	if sent.areMissing() && !i.opts.Required {
		return handler(ctx, req)
	}
	key, err := i.resolveKey(ctx, info.FullMethod, sent)
	if err != nil {
		return nil, err
	}
	if ctx.Value(guardedContextKey{}) == key {
		return handler(ctx, req)
	}
	if !isProto {
		return nil, newRefusal(ctx, refuseNonProto(req))
	}
	payload, err := i.opts.Fingerprint(ctx, message)
	if err != nil {
		return nil, newRefusal(ctx, refuseInvalidRequest(err))
	}
	c := &guardedCall{
		Interceptor: i, callContext: ctx, key: key, request: req, runHandler: handler,
		recorder: metadataRecorder{fullMethod: info.FullMethod},
	}
	return c.execute(payload)
}

// sentKeys are the keys of a call, as the client has sent them.
type sentKeys struct {
	inMetadata []string
	inMessage  string // empty without a key
}

func (k sentKeys) areMissing() bool { return len(k.inMetadata) == 0 && k.inMessage == "" }

// parseKey returns the key, which must be the same in both places.
func (k sentKeys) parseKey() (id string, err error) {
	if k.inMessage != "" { // in quotes, because the message has the key as it is
		id, err = idempotency.ParseKey([]string{`"` + quoteEscaper.Replace(k.inMessage) + `"`})
	}
	if err != nil || len(k.inMetadata) == 0 {
		return id, err
	}
	id, err = idempotency.ParseKey(k.inMetadata)
	if err == nil && k.inMessage != "" && id != k.inMessage {
		return "", refuseInvalidKey(errors.New("the metadata and the message have different keys"))
	}
	return id, err
}

// resolveKey returns the key of a call. The error is the answer to the client.
func (i *Interceptor) resolveKey(ctx context.Context, fullMethod string, sent sentKeys) (idempotency.Key, error) {
	if sent.areMissing() {
		return idempotency.Key{}, newRefusal(ctx, refuseMissingKey())
	}
	id, err := sent.parseKey()
	if err != nil {
		return idempotency.Key{}, newRefusal(ctx, toRefusal(err))
	}
	if err := i.opts.ValidateKey(id); err != nil {
		return idempotency.Key{}, newRefusal(ctx, refuseInvalidKey(err))
	}
	user, err := i.userOf(ctx)
	if err != nil || user == "" {
		return idempotency.Key{}, refuseUnknownUser(ctx, err)
	}
	return idempotency.Key{User: user, Endpoint: fullMethod, ID: id}, nil
}

// Stream is a [grpc.StreamServerInterceptor]. Stream refuses streams with a key with UNIMPLEMENTED, because only unary methods
// can be guarded, and the client would rely on the key. Streams without a key pass.
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
