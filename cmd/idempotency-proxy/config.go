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

// envPrefix begins the name of the environment variable for each flag.
const envPrefix = "IDEMPOTENCY_PROXY_"

// config has the settings by the operator.
type config struct {
	listenAddress, tlsCert, tlsKey string
	tlsClientCA                    string
	adminAddress                   string
	hasAccessLog                   bool
	runHealthcheck                 bool
	shutdownTimeout                time.Duration
	shutdownDelay                  time.Duration
	showVersion                    bool

	upstreamAddress                     string
	upstreamURL                         *url.URL
	upstreamHTTP2                       bool
	upstreamCA                          string
	upstreamCert                        string
	upstreamKey                         string
	upstreamDialTimeout                 time.Duration
	upstreamHeaderTimeout               time.Duration
	upstreamTimeout                     time.Duration
	upstreamIdleTimeout                 time.Duration
	preserveHost                        bool
	forwardKey                          bool
	unknownStatuses                     statusList
	storeAddress, storeFile             string
	storeURL                            *url.URL
	shouldMigrate                       bool
	userHeader                          string
	trustedPeers                        networkList
	isSingleUser                        bool
	jwt                                 jwtConfig
	keyHeaders, methods                 wordList
	keyRequired                         bool
	fingerprintName                     string
	fingerprintHeaders                  wordList
	ignoreHost                          bool
	abandonedPolicy                     string
	answerTTL, leaseDuration, waitLimit time.Duration
	storeTimeout                        time.Duration
	bodyTimeout                         time.Duration
	maxBody, maxBodies                  int64
	maxResponse                         int64
	maxUserRecords                      int
	failOpen                            bool
	reuseStatus                         int
	problemBase                         string
}

// jwtConfig has the settings for access tokens. Exactly one of keyFile, secretFile and keySetSource is set.
type jwtConfig struct {
	keyFile, secretFile, keySetSource string
	issuer, audience                  string
	acceptsAnyAudience                bool
	userClaim                         string
	leeway                            time.Duration
}

// newFlagSet returns the flags for c and sets c to the defaults.
func (c *config) newFlagSet() *flag.FlagSet {
	f := flag.NewFlagSet("idempotency-proxy", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&c.upstreamAddress, "upstream", "", "`URL` of the service; a path in the URL is put in front of all request paths")

	f.StringVar(&c.storeAddress, "store", "", "`URL` of the store: "+strings.Join(listURLForms(), ", "))
	f.StringVar(&c.storeFile, "store-file", "", "`file` that contains the URL of the store, for a URL with a password")
	f.BoolVar(&c.shouldMigrate, "migrate", false, "create or update the table in PostgreSQL at startup")

	f.StringVar(&c.userHeader, "user-header", "", "user from the `header` that an authenticating proxy in front sets")
	c.trustedPeers = networkList{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	f.Var(&c.trustedPeers, "trusted-peers", "`networks` of the proxy in front, whose -user-header and X-Forwarded-* count")
	f.StringVar(&c.jwt.keyFile, "jwt-key", "", "user from a bearer token; PEM `file` with the public key")
	f.StringVar(&c.jwt.secretFile, "jwt-secret", "", "user from a bearer token; `file` with the secret (HMAC), 32 bytes or more")
	f.StringVar(&c.jwt.keySetSource, "jwt-jwks", "", "user from a bearer token; JSON Web Key Set, an https `URL` or a file")
	f.StringVar(&c.jwt.issuer, "jwt-issuer", "", "required `iss` of tokens")
	f.StringVar(&c.jwt.audience, "jwt-audience", "", "required `aud` of tokens")
	f.BoolVar(&c.jwt.acceptsAnyAudience, "jwt-any-audience", false, "accept tokens for other services of the issuer, too")
	f.StringVar(&c.jwt.userClaim, "jwt-claim", "sub", "`claim` of the token that names the user")
	f.DurationVar(&c.jwt.leeway, "jwt-leeway", 30*time.Second, "tolerated difference between the clocks of issuer and proxy")
	f.BoolVar(&c.isSingleUser, "all-callers-are-one-user", false, "one user: any caller that knows a key gets the answer")

	c.keyHeaders, c.methods = wordList{"Idempotency-Key"}, wordList{"POST", "PATCH"}
	f.Var(&c.keyHeaders, "key-headers", "`names` of the request headers that may hold the key")
	f.Var(&c.methods, "methods", "HTTP `methods` of guarded requests")
	f.BoolVar(&c.keyRequired, "required", false, "refuse guarded requests without a key")
	f.StringVar(&c.fingerprintName, "fingerprint", "raw", "how request bodies are compared: raw, json or multipart")
	f.Var(&c.fingerprintHeaders, "fingerprint-headers", "`names` of compared request headers, which select what a request does")
	f.BoolVar(&c.ignoreHost, "ignore-host", false, "leave the host out of the key, for one service with several host names")
	f.StringVar(&c.abandonedPolicy, "abandoned", "refuse", "what a retry does after an unknown outcome: refuse or re-execute")
	c.unknownStatuses = statusList{502, 504}
	f.Var(&c.unknownStatuses, "unknown-status", "`statuses` of the service that leave the outcome unknown")
	f.DurationVar(&c.answerTTL, "ttl", 24*time.Hour, "how long a stored answer is kept")
	f.DurationVar(&c.leaseDuration, "lease", 30*time.Second, "how long a key stays blocked after a crash of the proxy")
	f.DurationVar(&c.waitLimit, "wait", 0, "how long a duplicate waits for the running attempt")
	f.DurationVar(&c.storeTimeout, "store-timeout", 0, "time limit of a store step; 0 means 5s, or a third of -lease if less")
	f.Int64Var(&c.maxBody, "max-body", 1<<20, "maximum `bytes` of the body of a guarded request")
	f.Int64Var(&c.maxBodies, "max-bodies", 256<<20, "maximum `bytes` of all these bodies together; 0 means no limit")
	f.Int64Var(&c.maxResponse, "max-response", 1<<20, "maximum `bytes` of an answer that can be replayed")
	f.IntVar(&c.maxUserRecords, "max-user-records", 0, "maximum `number` of records of a user in a shared store; 0 means no limit")
	f.DurationVar(&c.bodyTimeout, "body-timeout", time.Minute, "time limit for receiving the body of a guarded request")
	f.BoolVar(&c.failOpen, "fail-open", false, "forward requests without protection while the store is down")
	f.IntVar(&c.reuseStatus, "reuse-status", 409, "`status` of the refusal when a key was already used for a different request")
	f.StringVar(&c.problemBase, "problem-base", "", "`URL` prefix of the types of problems; empty means the prefix of the library")

	f.BoolVar(&c.upstreamHTTP2, "upstream-http2", false, "HTTP/2 to the service: with https if supported, with http always")
	f.StringVar(&c.upstreamCA, "upstream-ca", "", "PEM `file` with the authorities of an https service; empty means the system's")
	f.StringVar(&c.upstreamCert, "upstream-cert", "", "PEM `file` with the client certificate for the service")
	f.StringVar(&c.upstreamKey, "upstream-key", "", "PEM `file` with the private key of -upstream-cert")
	f.BoolVar(&c.preserveHost, "preserve-host", false, "send the Host header of the client to the service")
	f.BoolVar(&c.forwardKey, "forward-key", false, "send the key to the service")
	f.DurationVar(&c.upstreamDialTimeout, "upstream-dial-timeout", 5*time.Second, "time limit for connecting, including TLS")
	f.DurationVar(&c.upstreamHeaderTimeout, "upstream-header-timeout", time.Minute, "time limit for the start of an answer")
	f.DurationVar(&c.upstreamTimeout, "upstream-timeout", 5*time.Minute, "time limit for a whole guarded request")
	f.DurationVar(&c.upstreamIdleTimeout, "upstream-idle", time.Second, "how long an idle connection to the service is kept")

	f.StringVar(&c.listenAddress, "listen", "127.0.0.1:8080", "`address` to listen on")
	f.StringVar(&c.tlsCert, "tls-cert", "", "PEM `file` with the certificate of the proxy, to serve TLS")
	f.StringVar(&c.tlsKey, "tls-key", "", "PEM `file` with the private key of -tls-cert")
	f.StringVar(&c.tlsClientCA, "tls-client-ca", "", "PEM `file` with the authorities of required client certificates")
	f.StringVar(&c.adminAddress, "admin", "", "`address` that serves /healthz, /readyz and /metrics; empty means none")
	f.BoolVar(&c.hasAccessLog, "access-log", false, "write a JSON line for each request to standard output")
	f.DurationVar(&c.shutdownTimeout, "shutdown-timeout", 30*time.Second, "time limit for open requests and WebSockets")
	f.DurationVar(&c.shutdownDelay, "shutdown-delay", 0, "how long to keep serving after SIGTERM while /readyz reports not ready")
	f.BoolVar(&c.runHealthcheck, "healthcheck", false, "ask the proxy at -admin whether it is alive, and exit")
	f.BoolVar(&c.showVersion, "version", false, "print the version and exit")
	return f
}

// envName returns the name of the environment variable for flag.
func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// parseConfig reads the environment, and then the arguments, which take precedence. The error is flag.ErrHelp or reports all faults.
func parseConfig(args []string, env func(string) (string, bool)) (c config, err error) {
	flags := c.newFlagSet()
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
	if c.showVersion || c.runHealthcheck {
		return c, nil
	}
	if flags.NArg() > 0 {
		faults = append(faults, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	fromEnv, _ := env(envName("store"))
	faults = append(faults, c.resolveConfig(c.storeAddress == fromEnv)...)
	return c, errors.Join(faults...)
}

// resolveConfig parses the URLs and checks all combinations of flags. storeInEnv means that the URL of the store comes from the
// environment.
func (c *config) resolveConfig(storeInEnv bool) []error {
	faults := slices.Concat(c.resolveUpstream(), c.resolveStore(storeInEnv), c.checkUser(), c.checkRequests(), c.checkTLS(),
		c.checkBounds())
	anyStore := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	if _, err := newGuard(c, anyStore, idempotency.SingleUser, nil, nil); err != nil {
		faults = append(faults, err)
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return faults
}

// configCheck is a condition and the message for a configuration that meets the condition.
type configCheck struct {
	isFault bool
	message string
}

func collectFaults(checks ...configCheck) (faults []error) {
	for _, c := range checks {
		if c.isFault {
			faults = append(faults, errors.New(c.message))
		}
	}
	return faults
}

// resolveUpstream parses the URL of the service.
func (c *config) resolveUpstream() []error {
	upstream, err := url.Parse(c.upstreamAddress)
	c.upstreamURL = upstream
	switch {
	case c.upstreamAddress == "":
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

// checkRequests checks the settings about guarded requests and their comparison.
func (c *config) checkRequests() []error {
	_, isFingerprint := fingerprintsByName[c.fingerprintName]
	_, isPolicy := policiesByName[c.abandonedPolicy]
	checks := []configCheck{
		{!isFingerprint, "-fingerprint: want raw, json or multipart"},
		{!isPolicy, "-abandoned: want refuse or re-execute"},
		{len(c.methods) == 0, "-methods: none is named"},
		{len(c.keyHeaders) == 0, "-key-headers: none is named"},
	}
	for _, method := range c.methods {
		isUnguarded := slices.Contains([]string{"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"}, method)
		checks = append(checks,
			configCheck{isUnguarded, "-methods: " + method + " cannot be guarded"}, // net/http repeats such requests by itself
			configCheck{method != strings.ToUpper(method), "-methods: " + method + " is not in capital letters, as methods are"})
	}
	for _, name := range c.fingerprintHeaders {
		isChanged := slices.Contains(rewrittenFields, textproto.CanonicalMIMEHeaderKey(name))
		checks = append(checks,
			configCheck{isChanged, "-fingerprint-headers: " + name + " does not reach the service as clients send it"})
	}
	return collectFaults(checks...)
}

// checkTLS checks the settings about certificates.
func (c *config) checkTLS() []error {
	isPlain := c.upstreamURL != nil && c.upstreamURL.Scheme == "http"
	return collectFaults(
		configCheck{(c.tlsCert == "") != (c.tlsKey == ""), "-tls-cert and -tls-key belong together"},
		configCheck{c.tlsClientCA != "" && c.tlsCert == "", "-tls-client-ca needs -tls-cert"},
		configCheck{(c.upstreamCert == "") != (c.upstreamKey == ""), "-upstream-cert and -upstream-key belong together"},
		configCheck{isPlain && c.upstreamCA+c.upstreamCert != "", "-upstream-ca and -upstream-cert are for an https service"})
}

// checkBounds checks durations and sizes.
func (c *config) checkBounds() []error {
	checks := []configCheck{
		{c.storeTimeout < 0, "-store-timeout must not be negative"},
		{c.maxUserRecords < 0, "-max-user-records must not be negative"},
	}
	for name, n := range map[string]int64{
		"-ttl": int64(c.answerTTL), "-lease": int64(c.leaseDuration), "-shutdown-timeout": int64(c.shutdownTimeout),
		"-upstream-timeout": int64(c.upstreamTimeout), "-upstream-dial-timeout": int64(c.upstreamDialTimeout),
		"-upstream-header-timeout": int64(c.upstreamHeaderTimeout), "-upstream-idle": int64(c.upstreamIdleTimeout),
		"-body-timeout": int64(c.bodyTimeout), "-max-body": c.maxBody, "-max-response": c.maxResponse,
	} {
		checks = append(checks, configCheck{n <= 0, name + " must be positive"})
	}
	return collectFaults(checks...)
}

// resolveStore parses the URL of the store. A password in the arguments is a fault, because other users of the machine can see the
// arguments.
func (c *config) resolveStore(inEnv bool) (faults []error) {
	if c.storeFile != "" {
		if c.storeAddress != "" {
			return []error{errors.New("-store and -store-file: want one of them")}
		}
		text, err := os.ReadFile(c.storeFile)
		if err != nil {
			return []error{fmt.Errorf("-store-file: %w", err)}
		}
		c.storeAddress, inEnv = strings.TrimSpace(string(text)), true
	}
	if c.storeAddress == "" {
		return []error{fmt.Errorf("-store is missing: want one of %s", strings.Join(listURLForms(), ", "))}
	}
	parsed, err := url.Parse(c.storeAddress)
	if err != nil { // the text of err may contain the password
		return []error{errors.New("-store: not a URL")}
	}
	kind, ok := storeKinds[parsed.Scheme]
	if !ok {
		return []error{fmt.Errorf("-store: want one of %s", strings.Join(listURLForms(), ", "))}
	}
	if _, secret := parsed.User.Password(); (secret || parsed.Query().Has("password")) && !inEnv {
		seen := "-store has a password, which other users of the machine can see: use %s or -store-file"
		faults = append(faults, fmt.Errorf(seen, envName("store")))
	}
	if c.shouldMigrate && !strings.HasPrefix(parsed.Scheme, "postgres") {
		faults = append(faults, errors.New("-migrate is for postgres://"))
	}
	if c.maxUserRecords > 0 && !kind.countsUserRecords {
		faults = append(faults, errors.New("-max-user-records is for redis://, sqlite: and postgres://"))
	}
	c.storeURL = parsed
	return faults
}

// checkUser checks that exactly one setting identifies users.
func (c *config) checkUser() (faults []error) {
	var sources []string
	for name, set := range map[string]bool{
		"-user-header": c.userHeader != "", "-all-callers-are-one-user": c.isSingleUser,
		"-jwt-key": c.jwt.keyFile != "", "-jwt-secret": c.jwt.secretFile != "", "-jwt-jwks": c.jwt.keySetSource != "",
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
	case strings.ContainsFunc(c.userHeader, isInvalidInName):
		return []error{errors.New("-user-header: want letters, digits and hyphens")} // some servers read X_User as X-User
	case c.userHeader != "":
		return c.checkUserHeader()
	case !strings.HasPrefix(sources[0], "-jwt"):
		return nil
	}
	if c.jwt.issuer == "" {
		faults = append(faults, errors.New("-jwt-issuer is missing: users of different issuers are different users"))
	}
	if (c.jwt.audience == "") != c.jwt.acceptsAnyAudience {
		faults = append(faults, errors.New("want one of -jwt-audience and -jwt-any-audience"))
	}
	if c.jwt.userClaim == "" {
		faults = append(faults, errors.New("-jwt-claim must not be empty"))
	}
	if c.jwt.leeway < 0 {
		faults = append(faults, errors.New("-jwt-leeway must not be negative"))
	}
	return faults
}

// checkUserHeader checks that the header can name a user, and that -trusted-peers has a proxy that may set the header.
func (c *config) checkUserHeader() (faults []error) {
	name := textproto.CanonicalMIMEHeaderKey(c.userHeader)
	if slices.Contains(reservedFields, name) || strings.HasPrefix(name, "Content-") {
		faults = append(faults, fmt.Errorf("-user-header: %s has a meaning of its own", name))
	}
	for _, key := range c.keyHeaders {
		if areAlike(key, name) {
			faults = append(faults, fmt.Errorf("-user-header: %s has the key", name))
		}
	}
	if len(c.trustedPeers) == 0 {
		faults = append(faults, errors.New("-trusted-peers: none is named, so nobody could set -user-header"))
	}
	return faults
}

// rewrittenFields reach the service with other values than the client sent, because the fields belong to the hop or to this proxy.
var rewrittenFields = append([]string{
	"Connection", "Expect", "Forwarded", "Http2-Settings", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Te",
	"Upgrade", operationHeader, attemptHeader,
}, forwardedFields...)

// reservedFields cannot name the user, because the fields have a meaning of their own.
var reservedFields = append([]string{"Authorization", "Cookie", "Host", "Trailer", "Transfer-Encoding"}, rewrittenFields...)

func isInvalidInName(c rune) bool {
	return c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
}

var (
	fingerprintsByName = map[string]idempotency.FingerprintFunc{
		"raw":       idempotency.FingerprintRaw,
		"json":      fingerprint.JSON,
		"multipart": fingerprint.Multipart,
	}
	policiesByName = map[string]idempotency.Abandoned{"refuse": idempotency.Refuse, reExecute: idempotency.ReExecute}
)

const reExecute = "re-execute"

// wordList is a flag with words, separated by commas.
type wordList []string

func (w *wordList) String() string { return strings.Join(*w, ",") }

func (w *wordList) Set(text string) error {
	*w = nil
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			*w = append(*w, word)
		}
	}
	return nil
}

// statusList is a flag with status codes, separated by commas.
type statusList []int

func (n *statusList) String() string {
	var all wordList
	for _, number := range *n {
		all = append(all, strconv.Itoa(number))
	}
	return all.String()
}

func (n *statusList) Set(text string) error {
	var all wordList
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

// networkList is a flag with networks, separated by commas. An address is a network with a single address.
type networkList []netip.Prefix

func (p *networkList) String() string {
	var all wordList
	for _, prefix := range *p {
		all = append(all, prefix.String())
	}
	return all.String()
}

func (p *networkList) Set(text string) error {
	var all wordList
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

// containsPeer reports whether peer, an address with a port, is in any of the networks.
func (p networkList) containsPeer(peer string) bool {
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
