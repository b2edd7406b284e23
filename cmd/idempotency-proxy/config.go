package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/textproto"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
)

// envPrefix begins the name of the environment variable that each flag has.
const envPrefix = "IDEMPOTENCY_PROXY_"

// config is what the operator has set.
type config struct {
	listen, tlsCert, tlsKey string
	tlsClientCA             string
	admin                   string
	accessLog               bool
	healthcheck             bool
	shutdownTimeout         time.Duration
	shutdownDelay           time.Duration
	version                 bool

	upstream            string
	upstreamURL         *url.URL
	upstreamHTTP2       bool
	upstreamCA          string
	upstreamCert        string
	upstreamKey         string
	upstreamDial        time.Duration
	upstreamHeader      time.Duration
	upstreamTimeout     time.Duration
	upstreamIdle        time.Duration
	preserveHost        bool
	forwardKey          bool
	unknownStatus       numbers
	store, storeFile    string
	storeURL            *url.URL
	migrate             bool
	userHeader          string
	trusted             prefixes
	oneUser             bool
	jwt                 jwtConfig
	keyHeaders, methods words
	required            bool
	fingerprint         string
	fingerprintHeaders  words
	ignoreHost          bool
	abandoned           string
	ttl, lease, wait    time.Duration
	storeTimeout        time.Duration
	bodyTimeout         time.Duration
	maxBody, maxBodies  int64
	maxResponse         int64
	failOpen            bool
	reuseStatus         int
	problemBase         string
}

// jwtConfig says how access tokens are verified. One of the first three names the key.
type jwtConfig struct {
	key, secret, jwks string
	issuer, audience  string
	anyAudience       bool
	claim             string
	leeway            time.Duration
}

// flags returns the flags that set c, with their defaults.
func (c *config) flags() *flag.FlagSet {
	f := flag.NewFlagSet("idempotency-proxy", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&c.upstream, "upstream", "", "`URL` of the service; a path in it goes in front of all paths")

	f.StringVar(&c.store, "store", "", "`URL` of the store: "+strings.Join(storeForms(), ", "))
	f.StringVar(&c.storeFile, "store-file", "", "`file` with the URL of the store, if it holds a password")
	f.BoolVar(&c.migrate, "migrate", false, "make or update the table in PostgreSQL at start")

	f.StringVar(&c.userHeader, "user-header", "", "user: the `header` that an authenticating proxy in front sets")
	c.trusted = prefixes{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	f.Var(&c.trusted, "trusted-peers", "`networks` from which -user-header and X-Forwarded-* count: the proxy in front")
	f.StringVar(&c.jwt.key, "jwt-key", "", "user: a claim of the bearer token; PEM `file` with the public key")
	f.StringVar(&c.jwt.secret, "jwt-secret", "", "the same; `file` with the shared secret (HMAC), 32 bytes or more")
	f.StringVar(&c.jwt.jwks, "jwt-jwks", "", "the same; JSON Web Key Set, an https `URL` or a file")
	f.StringVar(&c.jwt.issuer, "jwt-issuer", "", "`iss` that tokens must have")
	f.StringVar(&c.jwt.audience, "jwt-audience", "", "`aud` that tokens must have")
	f.BoolVar(&c.jwt.anyAudience, "jwt-any-audience", false, "accept tokens for other services of the issuer, too")
	f.StringVar(&c.jwt.claim, "jwt-claim", "sub", "`claim` that names the user")
	f.DurationVar(&c.jwt.leeway, "jwt-leeway", 30*time.Second, "how far clocks may differ")
	f.BoolVar(&c.oneUser, "all-callers-are-one-user", false, "user: none; whoever knows a key gets its answer")

	c.keyHeaders, c.methods = words{"Idempotency-Key"}, words{"POST", "PATCH"}
	f.Var(&c.keyHeaders, "key-headers", "`names` of the header with the key")
	f.Var(&c.methods, "methods", "guarded `methods`")
	f.BoolVar(&c.required, "required", false, "refuse guarded requests without a key")
	f.StringVar(&c.fingerprint, "fingerprint", "raw", "what makes two bodies the same: raw, json or multipart")
	f.Var(&c.fingerprintHeaders, "fingerprint-headers", "`names` of request headers that select what a request does")
	f.BoolVar(&c.ignoreHost, "ignore-host", false, "the host is no part of a key: one service under several names")
	f.StringVar(&c.abandoned, "abandoned", "refuse", "what a retry does after an unknown outcome: refuse or re-execute")
	c.unknownStatus = numbers{502, 504}
	f.Var(&c.unknownStatus, "unknown-status", "`statuses` of the service that say nothing of the outcome")
	f.DurationVar(&c.ttl, "ttl", 24*time.Hour, "how long an answer is kept")
	f.DurationVar(&c.lease, "lease", 30*time.Second, "how long a key stays blocked after the proxy dies")
	f.DurationVar(&c.wait, "wait", 0, "how long a duplicate waits for the running attempt")
	f.DurationVar(&c.storeTimeout, "store-timeout", 0, "bound on each step of the store; 0: 5s, or a third of -lease")
	f.Int64Var(&c.maxBody, "max-body", 1<<20, "most `bytes` of the body of a guarded request")
	f.Int64Var(&c.maxBodies, "max-bodies", 256<<20, "most `bytes` of all these bodies together; 0: no limit")
	f.Int64Var(&c.maxResponse, "max-response", 1<<20, "most `bytes` of an answer that is stored")
	f.DurationVar(&c.bodyTimeout, "body-timeout", time.Minute, "bound on the arrival of the body of a guarded request")
	f.BoolVar(&c.failOpen, "fail-open", false, "forward without protection while the store is down")
	f.IntVar(&c.reuseStatus, "reuse-status", 409, "`status` of the refusal of a key that came with another request")
	f.StringVar(&c.problemBase, "problem-base", "", "`URL` in front of the code in the type of a problem; empty: that of the library")

	f.BoolVar(&c.upstreamHTTP2, "upstream-http2", false, "HTTP/2 to the service: with https if it can, with http always")
	f.StringVar(&c.upstreamCA, "upstream-ca", "", "PEM `file` with the authorities of an https service; empty: the system's")
	f.StringVar(&c.upstreamCert, "upstream-cert", "", "PEM `file` with the certificate that the service is shown")
	f.StringVar(&c.upstreamKey, "upstream-key", "", "PEM `file` with its key")
	f.BoolVar(&c.preserveHost, "preserve-host", false, "send the client's Host to the service")
	f.BoolVar(&c.forwardKey, "forward-key", false, "send the key to the service")
	f.DurationVar(&c.upstreamDial, "upstream-dial-timeout", 5*time.Second, "bound on connecting, TLS included")
	f.DurationVar(&c.upstreamHeader, "upstream-header-timeout", time.Minute, "bound on the wait for an answer to begin")
	f.DurationVar(&c.upstreamTimeout, "upstream-timeout", 5*time.Minute, "bound on a guarded request as a whole")
	f.DurationVar(&c.upstreamIdle, "upstream-idle", time.Second, "how long an idle connection is kept")

	f.StringVar(&c.listen, "listen", "127.0.0.1:8080", "`address` to serve on")
	f.StringVar(&c.tlsCert, "tls-cert", "", "PEM `file` with the certificate, to serve TLS")
	f.StringVar(&c.tlsKey, "tls-key", "", "PEM `file` with its key")
	f.StringVar(&c.tlsClientCA, "tls-client-ca", "", "PEM `file` with the authorities of the certificates that clients must show")
	f.StringVar(&c.admin, "admin", "", "`address` of /healthz, /readyz and /metrics; empty: none")
	f.BoolVar(&c.accessLog, "access-log", false, "write a line of JSON for each request to standard output")
	f.DurationVar(&c.shutdownTimeout, "shutdown-timeout", 30*time.Second, "bound on the wait for requests and WebSockets")
	f.DurationVar(&c.shutdownDelay, "shutdown-delay", 0, "how long to go on serving after SIGTERM, not ready")
	f.BoolVar(&c.healthcheck, "healthcheck", false, "ask the proxy at -admin whether it lives, and exit")
	f.BoolVar(&c.version, "version", false, "print the version and exit")
	return f
}

// envName returns the name of the environment variable of a flag.
func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// parse reads the environment, and then the arguments, which outrank it. The error reports every fault, or is
// flag.ErrHelp.
func parse(args []string, env func(string) (string, bool)) (c config, err error) {
	flags := c.flags()
	var faults []error
	flags.VisitAll(func(f *flag.Flag) {
		value, ok := env(envName(f.Name))
		if !ok {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", envName(f.Name), err))
		}
	})
	if err := flags.Parse(args); err != nil {
		return c, errors.Join(append(faults, err)...)
	}
	if c.version || c.healthcheck {
		return c, nil
	}
	if flags.NArg() > 0 {
		faults = append(faults, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	fromEnv, _ := env(envName("store"))
	faults = append(faults, c.resolve(c.store == fromEnv)...)
	return c, errors.Join(faults...)
}

// resolve checks what a flag cannot check for itself.
func (c *config) resolve(storeInEnv bool) []error {
	faults := slices.Concat(c.resolveUpstream(), c.resolveStore(storeInEnv), c.checkUser(), c.checkRequests(), c.checkTLS(),
		c.checkBounds())
	anyStore := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	if _, err := newGuard(c, anyStore, idempotency.SingleUser, nil, nil); err != nil {
		faults = append(faults, err)
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return faults
}

// check is a fault that a configuration has if the condition holds.
type check struct {
	isFault bool
	text    string
}

func faultsOf(checks ...check) (faults []error) {
	for _, c := range checks {
		if c.isFault {
			faults = append(faults, errors.New(c.text))
		}
	}
	return faults
}

// resolveUpstream reads the URL of the service.
func (c *config) resolveUpstream() []error {
	upstream, err := url.Parse(c.upstream)
	c.upstreamURL = upstream
	switch {
	case c.upstream == "":
		return []error{errors.New("-upstream is missing: where is the service?")}
	case err != nil:
		return []error{errors.New("-upstream: not a URL")}
	case upstream.Scheme != "http" && upstream.Scheme != "https", upstream.Host == "":
		return []error{errors.New("-upstream: want http://host:port or https://host:port")}
	case upstream.User != nil, upstream.RawQuery != "", upstream.Fragment != "":
		return []error{errors.New("-upstream: must have no user, query or fragment")}
	}
	return nil
}

// checkRequests checks which requests are guarded, and how two of them are compared.
func (c *config) checkRequests() []error {
	_, isFingerprint := fingerprints[c.fingerprint]
	_, isPolicy := abandoned[c.abandoned]
	checks := []check{
		{!isFingerprint, "-fingerprint: want raw, json or multipart"},
		{!isPolicy, "-abandoned: want refuse or re-execute"},
		{len(c.methods) == 0, "-methods: none is named"},
		{len(c.keyHeaders) == 0, "-key-headers: none is named"},
	}
	for _, method := range c.methods {
		isUnguarded := slices.Contains([]string{"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"}, method)
		checks = append(checks,
			check{isUnguarded, "-methods: " + method + " cannot be guarded"}, // net/http sends such requests again by itself
			check{method != strings.ToUpper(method), "-methods: " + method + " is not in capital letters, as methods are"})
	}
	for _, name := range c.fingerprintHeaders {
		isChanged := slices.Contains(changedFields, textproto.CanonicalMIMEHeaderKey(name))
		checks = append(checks, check{isChanged, "-fingerprint-headers: " + name + " does not reach the service as clients send it"})
	}
	return faultsOf(checks...)
}

// checkTLS checks which certificates are shown and trusted.
func (c *config) checkTLS() []error {
	isPlain := c.upstreamURL != nil && c.upstreamURL.Scheme == "http"
	return faultsOf(
		check{(c.tlsCert == "") != (c.tlsKey == ""), "-tls-cert and -tls-key belong together"},
		check{c.tlsClientCA != "" && c.tlsCert == "", "-tls-client-ca needs -tls-cert"},
		check{(c.upstreamCert == "") != (c.upstreamKey == ""), "-upstream-cert and -upstream-key belong together"},
		check{isPlain && c.upstreamCA+c.upstreamCert != "", "-upstream-ca and -upstream-cert are for an https service"})
}

// checkBounds checks durations and sizes.
func (c *config) checkBounds() []error {
	checks := []check{{c.storeTimeout < 0, "-store-timeout must not be negative"}}
	for name, n := range map[string]int64{
		"-ttl": int64(c.ttl), "-lease": int64(c.lease), "-shutdown-timeout": int64(c.shutdownTimeout),
		"-upstream-timeout": int64(c.upstreamTimeout), "-upstream-dial-timeout": int64(c.upstreamDial),
		"-upstream-header-timeout": int64(c.upstreamHeader), "-upstream-idle": int64(c.upstreamIdle),
		"-body-timeout": int64(c.bodyTimeout), "-max-body": c.maxBody, "-max-response": c.maxResponse,
	} {
		checks = append(checks, check{n <= 0, name + " must be positive"})
	}
	return faultsOf(checks...)
}

// resolveStore reads the URL of the store. A password must not stand in the arguments, which other users of the machine
// can see.
func (c *config) resolveStore(inEnv bool) (faults []error) {
	if c.storeFile != "" {
		if c.store != "" {
			return []error{errors.New("-store and -store-file: want one of them")}
		}
		text, err := os.ReadFile(c.storeFile)
		if err != nil {
			return []error{fmt.Errorf("-store-file: %w", err)}
		}
		c.store, inEnv = strings.TrimSpace(string(text)), true
	}
	if c.store == "" {
		return []error{fmt.Errorf("-store is missing: want one of %s", strings.Join(storeForms(), ", "))}
	}
	parsed, err := url.Parse(c.store)
	if err != nil { // which would show the password
		return []error{errors.New("-store: not a URL")}
	}
	if _, ok := stores[parsed.Scheme]; !ok {
		return []error{fmt.Errorf("-store: want one of %s", strings.Join(storeForms(), ", "))}
	}
	if _, secret := parsed.User.Password(); (secret || parsed.Query().Has("password")) && !inEnv {
		seen := "-store has a password, which other users of the machine can see: use %s or -store-file"
		faults = append(faults, fmt.Errorf(seen, envName("store")))
	}
	if c.migrate && !strings.HasPrefix(parsed.Scheme, "postgres") {
		faults = append(faults, errors.New("-migrate is for postgres://"))
	}
	c.storeURL = parsed
	return faults
}

// checkUser makes sure that there is one way to tell users apart.
func (c *config) checkUser() (faults []error) {
	var sources []string
	for name, set := range map[string]bool{
		"-user-header": c.userHeader != "", "-all-callers-are-one-user": c.oneUser,
		"-jwt-key": c.jwt.key != "", "-jwt-secret": c.jwt.secret != "", "-jwt-jwks": c.jwt.jwks != "",
	} {
		if set {
			sources = append(sources, name)
		}
	}
	slices.Sort(sources)
	switch {
	case len(sources) == 0:
		return []error{errors.New("who sent a request? " +
			"want one of -user-header, -jwt-key, -jwt-secret, -jwt-jwks, -all-callers-are-one-user")}
	case len(sources) > 1:
		return []error{fmt.Errorf("%s: want one of them", strings.Join(sources, " and "))}
	case strings.ContainsFunc(c.userHeader, isNoLetter):
		return []error{errors.New("-user-header: want letters, digits and hyphens")} // X_User and X-User are one
	case c.userHeader != "":
		return c.checkUserHeader()
	case !strings.HasPrefix(sources[0], "-jwt"):
		return nil
	}
	if c.jwt.issuer == "" {
		faults = append(faults, errors.New("-jwt-issuer is missing: users of different issuers are different users"))
	}
	if (c.jwt.audience == "") != c.jwt.anyAudience {
		faults = append(faults, errors.New("want one of -jwt-audience and -jwt-any-audience"))
	}
	if c.jwt.claim == "" {
		faults = append(faults, errors.New("-jwt-claim must not be empty"))
	}
	if c.jwt.leeway < 0 {
		faults = append(faults, errors.New("-jwt-leeway must not be negative"))
	}
	return faults
}

// checkUserHeader makes sure that the header can name a user, and that somebody may set it.
func (c *config) checkUserHeader() (faults []error) {
	name := textproto.CanonicalMIMEHeaderKey(c.userHeader)
	if slices.Contains(otherHeaders, name) || strings.HasPrefix(name, "Content-") {
		faults = append(faults, fmt.Errorf("-user-header: %s has a meaning of its own", name))
	}
	for _, key := range c.keyHeaders {
		if alike(key, name) {
			faults = append(faults, fmt.Errorf("-user-header: %s has the key", name))
		}
	}
	if len(c.trusted) == 0 {
		faults = append(faults, errors.New("-trusted-peers: none is named, so nobody could set -user-header"))
	}
	return faults
}

// changedFields do not reach the service as the client sends them: they belong to the hop, or to this proxy.
var changedFields = append([]string{
	"Connection", "Expect", "Forwarded", "Http2-Settings", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Te",
	"Upgrade", operationHeader, attemptHeader,
}, forwardedFields...)

// otherHeaders name no user, because they have a meaning of their own.
var otherHeaders = append([]string{"Authorization", "Cookie", "Host", "Trailer", "Transfer-Encoding"}, changedFields...)

func isNoLetter(c rune) bool {
	return c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
}

var (
	fingerprints = map[string]idempotency.FingerprintFunc{
		"raw":       idempotency.FingerprintRaw,
		"json":      fingerprint.JSON,
		"multipart": fingerprint.Multipart,
	}
	abandoned = map[string]idempotency.Abandoned{"refuse": idempotency.Refuse, reExecute: idempotency.ReExecute}
)

const reExecute = "re-execute"

// words is a flag with several words, separated by commas.
type words []string

func (w *words) String() string { return strings.Join(*w, ",") }

func (w *words) Set(text string) error {
	*w = nil
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			*w = append(*w, word)
		}
	}
	return nil
}

// numbers is a flag with several status codes.
type numbers []int

func (n *numbers) String() string {
	var all words
	for _, number := range *n {
		all = append(all, strconv.Itoa(number))
	}
	return all.String()
}

func (n *numbers) Set(text string) error {
	var all words
	_ = all.Set(text)
	*n = nil
	for _, word := range all {
		number, err := strconv.Atoi(word)
		if err != nil || number < 400 || number > 599 {
			return fmt.Errorf("%q is not a status from 400 to 599", word)
		}
		*n = append(*n, number)
	}
	return nil
}

// prefixes is a flag with several networks. An address stands for itself.
type prefixes []netip.Prefix

func (p *prefixes) String() string {
	var all words
	for _, prefix := range *p {
		all = append(all, prefix.String())
	}
	return all.String()
}

func (p *prefixes) Set(text string) error {
	var all words
	_ = all.Set(text)
	*p = nil
	for _, word := range all {
		prefix, err := netip.ParsePrefix(word)
		if err != nil {
			addr, err := netip.ParseAddr(word)
			if err != nil {
				return fmt.Errorf("%q is not a network such as 10.0.0.0/8", word)
			}
			prefix = netip.PrefixFrom(addr, addr.BitLen())
		}
		*p = append(*p, prefix.Masked())
	}
	return nil
}

// contain reports whether the address of a peer, with its port, is in one of the networks.
func (p prefixes) contain(peer string) bool {
	host, _, err := net.SplitHostPort(peer)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	addr = addr.Unmap().WithZone("")
	return slices.ContainsFunc(p, func(prefix netip.Prefix) bool { return prefix.Contains(addr) })
}
