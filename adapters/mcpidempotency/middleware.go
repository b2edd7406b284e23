package mcpidempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
)

// UserFunc returns the ID of the authenticated caller. extra has the token and the HTTP header of the call, and is never
// nil. Over stdio, extra is empty. UserFunc does not get the arguments, because a model can write any user into the
// arguments. The keys of different users are separate. If UserFunc returns an error or an empty ID, the call is refused
// with user-unknown. If the error is or wraps an [*idempotency.Error], the call is refused with that Error.
type UserFunc func(ctx context.Context, extra *mcp.RequestExtra) (string, error)

// TokenUser is the UserFunc of a server behind [auth.RequireBearerToken]. TokenUser returns the UserID that the verifier
// of the token has set, and an error without a token or without a UserID.
//
// [auth.RequireBearerToken]: https://pkg.go.dev/github.com/modelcontextprotocol/go-sdk/auth#RequireBearerToken
func TokenUser(_ context.Context, extra *mcp.RequestExtra) (string, error) {
	if extra.TokenInfo == nil || extra.TokenInfo.UserID == "" {
		return "", errors.New("mcpidempotency: the call has no token with a UserID")
	}
	return extra.TokenInfo.UserID, nil
}

// SingleUser is the UserFunc of a server with a single caller, such as a server over stdio. Several callers share their
// keys under SingleUser, so a caller may get the result of a call of another caller.
func SingleUser(context.Context, *mcp.RequestExtra) (string, error) { return "single", nil }

// Options are the settings of the middleware. The zero value of each field is its default.
type Options struct {
	// Required refuses calls without a key with key-missing, in a text that tells a model what to send. The listed input
	// schema then requires the key. By default, calls without a key reach the tool unguarded.
	Required bool

	// Tools reports whether the calls of a tool are guarded. Calls of all other tools pass, with or without a key. Tools
	// gets the tool as the server lists it, or only a name if the server does not list the tool. Nil means [NeedsKey].
	Tools func(*mcp.Tool) bool

	// MetaKey is the name of the key in _meta of the call, where the program around a model can put a key. Empty means
	// idempotency-key.
	MetaKey string

	// Argument is the place of the key in the arguments, where a model can put a key: a JSON pointer (RFC 6901) whose
	// tokens are names of members, such as /meta/idempotency-key. If the input schema of a tool lacks the first member,
	// tools/list shows the member to clients, and the tool gets its arguments without the member. Otherwise the schema and
	// the arguments stay as they are. A call with different keys in two places is refused with key-invalid. Empty means
	// /idempotency_key.
	Argument string

	// Header is the name of a field with the key in the header of the HTTP request, such as Idempotency-Key. All calls of a
	// request share the field. Empty means that no key is in the header.
	Header string

	// ValidateKey returns an error for an unacceptable key, for example [idempotency.ValidateUUID]. The client sees the
	// text of the error. Nil accepts every key.
	ValidateKey func(id string) error

	// Storable reports whether a result ends the operation, so that the result is stored and replayed. After any other
	// result, the operation may be tried again. [idempotency.Decide] takes precedence over Storable. Nil stores results
	// without IsError, because an error of a tool is often temporary.
	Storable func(*mcp.CallToolResult) bool

	// Refusal returns the answer to a refused call: a result, or a JSON-RPC error. The Detail of the refusal is a text for
	// models. Nil returns a result with IsError, see the documentation of the package.
	Refusal func(*idempotency.Error) (*mcp.CallToolResult, error)

	// MaxResponse is the size of the largest result to store, in bytes of JSON. A larger result is sent, and repetitions of
	// the call are refused with not-replayable. Zero means 1 MiB.
	MaxResponse int64

	// CancelWithClient ends the context of the tool when the client cancels the call or the connection ends, as the SDK
	// does. By default the tool goes on, and its result is stored for a repetition of the call.
	CancelWithClient bool
}

func (o Options) withDefaults() Options {
	o.MetaKey = cmp.Or(o.MetaKey, "idempotency-key")
	o.Argument = cmp.Or(o.Argument, "/idempotency_key")
	o.MaxResponse = cmp.Or(o.MaxResponse, 1<<20)
	if o.Tools == nil {
		o.Tools = NeedsKey
	}
	if o.ValidateKey == nil {
		o.ValidateKey = func(string) error { return nil }
	}
	if o.Storable == nil {
		o.Storable = func(result *mcp.CallToolResult) bool { return !result.IsError }
	}
	return o
}

// guard is the middleware of a server.
type guard struct {
	runner      *idempotency.Runner
	userOf      UserFunc
	opts        Options
	keyPath     []string                    // the names in Options.Argument
	fingerprint idempotency.FingerprintFunc // of the arguments without the key
}

// New returns middleware that executes operations with runner. The middleware calls user to identify the caller of each
// guarded call. Pass the middleware to [mcp.Server.AddReceivingMiddleware], behind all middleware that must act on each
// call, such as rate limits. The error reports all faults of the arguments.
func New(runner *idempotency.Runner, user UserFunc, opts Options) (mcp.Middleware, error) {
	var faults []error
	if runner == nil {
		faults = append(faults, errors.New("mcpidempotency: Runner is nil"))
	}
	if user == nil {
		faults = append(faults, errors.New("mcpidempotency: UserFunc is nil: use SingleUser if there is one caller only"))
	}
	if opts.MaxResponse < 0 {
		faults = append(faults, fmt.Errorf("mcpidempotency: MaxResponse is %d: it must not be negative", opts.MaxResponse))
	}
	opts = opts.withDefaults()
	withoutKey, err := fingerprint.JSONWithout(opts.Argument)
	if err != nil {
		faults = append(faults, fmt.Errorf("mcpidempotency: Argument: %w", err))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	g := &guard{runner: runner, userOf: user, opts: opts, keyPath: parsePointer(opts.Argument), fingerprint: withoutKey}
	return g.wrapHandler, nil
}

// parsePointer returns the names in a JSON pointer.
func parsePointer(pointer string) []string {
	names := strings.Split(pointer, "/")[1:]
	for i, name := range names {
		names[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
	}
	return names
}

// wrapHandler is the [mcp.Middleware].
func (g *guard) wrapHandler(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch req := req.(type) {
		case *mcp.ListToolsRequest:
			result, err := next(ctx, method, req)
			if list, ok := result.(*mcp.ListToolsResult); ok && err == nil {
				return g.describeKeys(list), nil
			}
			return result, err
		case *mcp.CallToolRequest:
			return g.handleCall(ctx, method, req, next)
		}
		return next(ctx, method, req)
	}
}

// handleCall answers tools/call.
func (g *guard) handleCall(
	ctx context.Context, method string, request *mcp.CallToolRequest, next mcp.MethodHandler,
) (mcp.Result, error) {
	tool := findTool(ctx, request, next)
	if !g.opts.Tools(tool) {
		return next(ctx, method, request)
	}
	id, refusal := g.readKey(request)
	if refusal != nil {
		return g.refuse(tool, refusal)
	}
	forTool := g.removeKey(request, tool)
	if id == "" && !g.opts.Required {
		return next(ctx, method, forTool)
	}
	key, refusal := g.newKey(ctx, request, id)
	if refusal != nil {
		return g.refuse(tool, refusal)
	}
	payload, err := g.fingerprintArguments(request.Params)
	if err != nil {
		return g.refuse(tool, refuseInvalidArguments(err))
	}
	c := &guardedCall{guard: g, tool: tool, callContext: ctx, key: key, runTool: func(ctx context.Context) (mcp.Result, error) {
		return next(ctx, method, forTool)
	}}
	return c.execute(payload)
}

// newKey returns the key of a call, for the ID that the client has sent, or "" without a key.
func (g *guard) newKey(
	ctx context.Context, request *mcp.CallToolRequest, id string,
) (idempotency.Key, *idempotency.Error) {
	if id == "" {
		return idempotency.Key{}, g.refuseMissingKey()
	}
	if err := g.opts.ValidateKey(id); err != nil {
		return idempotency.Key{}, refuseInvalidKey(err)
	}
	user, err := g.userOf(ctx, cmp.Or(request.Extra, new(mcp.RequestExtra)))
	if err != nil || user == "" {
		return idempotency.Key{}, refuseUnknownUser(err)
	}
	return idempotency.Key{User: user, Endpoint: "tools/call " + request.Params.Name, ID: id}, nil
}

// jsonRequest is a request with a JSON body, for package fingerprint.
var jsonRequest = newJSONRequest()

func newJSONRequest() *http.Request {
	request, _ := http.NewRequest(http.MethodPost, "/", nil)
	request.Header.Set("Content-Type", "application/json")
	return request
}

// fingerprintArguments returns a digest of the arguments without the key, by which a repetition is recognized.
func (g *guard) fingerprintArguments(params *mcp.CallToolParamsRaw) ([]byte, error) {
	arguments := params.Arguments
	if len(arguments) == 0 {
		arguments = []byte("{}")
	}
	digest, err := g.fingerprint(jsonRequest, arguments)
	return digest[:], err
}
