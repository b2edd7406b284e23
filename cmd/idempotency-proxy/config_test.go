package main_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// runProgram runs the program with arguments that make the program end, and returns the exit status and the output.
func runProgram(t *testing.T, env []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, complaints bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &complaints
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), out.String(), complaints.String()
}

// An invalid configuration ends the program with one line that names the flag.
func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	long := file("secret", strings.Repeat("s", 32))
	public := file("public", "-----BEGIN PUBLIC KEY-----\n"+strings.Repeat("A", 64))
	private := file("private", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
	cert, key := writeCertificate(t)
	jwt := func(more ...string) []string {
		return append([]string{
			"-upstream", "http://localhost:1", "-store", "memory:", "-jwt-issuer", "i", "-jwt-audience", "a",
		}, more...)
	}
	one := func(more ...string) []string {
		return append([]string{"-upstream", "http://localhost:1", "-all-callers-are-one-user"}, more...)
	}
	memory := func(more ...string) []string { return append(one("-store", "memory:"), more...) }
	header := func(name string) []string {
		return []string{"-upstream", "http://localhost:1", "-store", "memory:", "-user-header", name}
	}
	for name, test := range map[string]struct {
		args       []string
		wantStatus int
		wantErrors []string // parts of the line
	}{
		"no flags":                   {nil, 2, []string{"-upstream is missing", "-store is missing", "who sent a request?"}},
		"no user source":             {jwt(), 2, []string{"want one of -user-header"}},
		"two user sources":           {memory("-user-header", "X-User"), 2, []string{"one-user and -user-header"}},
		"underscore":                 {header("X_User"), 2, []string{"-user-header: want letters"}},
		"a header of HTTP":           {header("host"), 2, []string{"-user-header: Host has a meaning of its own"}},
		"header of the hop":          {header("X-Forwarded-For"), 2, []string{"-user-header: X-Forwarded-For has"}},
		"header of the proxy":        {header("Idempotency-Operation"), 2, []string{"-user-header: Idempotency-Operation has"}},
		"header of the key":          {header("Idempotency-Key"), 2, []string{"-user-header: Idempotency-Key has the key"}},
		"compared header of the hop": {memory("-fingerprint-headers", "X-A,te"), 2, []string{"-fingerprint-headers: te does not reach"}},
		"compared header of the proxy": {memory("-fingerprint-headers", "X-Forwarded-Host"), 2,
			[]string{"-fingerprint-headers: X-Forwarded-Host does not reach"}},
		"no problem base":      {memory("-problem-base", "https://x"), 2, []string{"ProblemBase \"https://x\" is no URL"}},
		"no trusted peers":     {append(header("X-User"), "-trusted-peers", ""), 2, []string{"-trusted-peers: none"}},
		"two keys":             {jwt("-jwt-key", "a", "-jwt-secret", "b"), 2, []string{"-jwt-key and -jwt-secret"}},
		"no issuer":            {jwt("-jwt-secret", long, "-jwt-issuer", ""), 2, []string{"-jwt-issuer is missing"}},
		"no audience":          {jwt("-jwt-secret", long, "-jwt-audience", ""), 2, []string{"-jwt-any-audience"}},
		"two audiences":        {jwt("-jwt-secret", long, "-jwt-any-audience"), 2, []string{"want one of -jwt-audience"}},
		"no claim":             {jwt("-jwt-secret", long, "-jwt-claim", ""), 2, []string{"-jwt-claim"}},
		"negative leeway":      {jwt("-jwt-secret", long, "-jwt-leeway", "-1s"), 2, []string{"-jwt-leeway"}},
		"short secret":         {jwt("-jwt-secret", file("short", "short")), 1, []string{"5 bytes are too few"}},
		"public key as secret": {jwt("-jwt-secret", public), 1, []string{"belongs to -jwt-key"}},
		"no PEM":               {jwt("-jwt-key", long), 1, []string{"no PEM"}},
		"a private key":        {jwt("-jwt-key", private), 1, []string{"want a PUBLIC KEY"}},
		"no such file":         {jwt("-jwt-key", dir+"/none"), 1, []string{"-jwt-key: open"}},
		"no key set":           {jwt("-jwt-jwks", long), 1, []string{"-jwt-jwks"}},
		"key set in the clear": {jwt("-jwt-jwks", "http://192.0.2.1/keys"), 1, []string{"want https"}},
		"key set not there":    {jwt("-jwt-jwks", "http://127.0.0.1:1/keys"), 1, []string{"-jwt-jwks", "refused"}},
		"upstream":             {memory("-upstream", "localhost:1"), 2, []string{"-upstream: want http://"}},
		"upstream with a user": {memory("-upstream", "http://u:p@localhost"), 2, []string{"-upstream: must have no user"}},
		"another store":        {one("-store", "mysql://localhost"), 2, []string{"-store: want one of dynamodb:"}},
		"password seen by all": {one("-store", "redis://:topsecret@localhost"), 2, []string{"-store has a password"}},
		"password in a query":  {one("-store", "postgres://h/?password=topsecret"), 2, []string{"-store has a password"}},
		"broken store URL":     {one("-store", "redis://u:topsecret@host:port%"), 2, []string{"-store: not a URL"}},
		"store down":           {one("-store", "redis://127.0.0.1:1"), 1, []string{"-store", "refused"}},
		"two stores":           {memory("-store-file", long), 2, []string{"-store and -store-file"}},
		"no file":              {one("-store", "sqlite:"), 1, []string{"name of the file is missing"}},
		"not a host":           {one("-store", "sqlite://dir/records.db"), 1, []string{"want sqlite:file"}},
		"not a name of memory": {one("-store", "memory:records"), 1, []string{"want memory:"}},
		"unknown parameter":    {one("-store", "memory:?maxbytes=5"), 1, []string{`"maxbytes" is unknown`}},
		"client CA, no TLS":    {memory("-tls-client-ca", long), 2, []string{"-tls-client-ca needs -tls-cert"}},
		"half a certificate":   {memory("-upstream-cert", long), 2, []string{"-upstream-key belong together"}},
		"CA without https":     {memory("-upstream-ca", long), 2, []string{"-upstream-ca and -upstream-cert are for"}},
		"no CA":                {memory("-upstream", "https://localhost:1", "-upstream-ca", long), 1, []string{"-upstream-ca: no cert"}},
		"no certificate to show": {memory("-upstream", "https://localhost:1", "-upstream-cert", long, "-upstream-key", long), 1,
			[]string{"-upstream-cert: tls"}},
		"no client CA": {memory("-tls-cert", cert, "-tls-key", key, "-tls-client-ca", long), 1,
			[]string{"-tls-client-ca: no cert"}},
		"no time for bodies": {memory("-body-timeout", "0s"), 2, []string{"-body-timeout must be positive"}},
		"no directory":       {one("-store", "sqlite:"+dir+"/none/records.db"), 1, []string{"-store: sqlitestore"}},
		"migrate memory":     {memory("-migrate"), 2, []string{"-migrate is for postgres"}},
		"quota in memory":    {memory("-max-user-records", "5"), 2, []string{"-max-user-records is for redis"}},
		"negative quota":     {memory("-max-user-records", "-5"), 2, []string{"-max-user-records must not be negative"}},
		"memory limit":       {one("-store", "memory:?max-bytes=much"), 1, []string{"max-bytes"}},
		"methods":            {memory("-methods", "POST,GET"), 2, []string{"GET cannot be guarded"}},
		"small methods":      {memory("-methods", "post"), 2, []string{"capital letters"}},
		"no methods":         {memory("-methods", ","), 2, []string{"-methods"}},
		"lease beyond TTL":   {memory("-ttl", "1s"), 2, []string{"TTL 1s is shorter than Lease"}},
		"no lease":           {memory("-lease", "0s"), 2, []string{"-lease must be positive"}},
		"fingerprint":        {memory("-fingerprint", "xml"), 2, []string{"-fingerprint: want raw"}},
		"abandoned":          {memory("-abandoned", "maybe"), 2, []string{"-abandoned: want refuse"}},
		"status":             {memory("-unknown-status", "502,abc"), 2, []string{`"abc" is not a status`}},
		"networks":           {memory("-trusted-peers", "everyone"), 2, []string{`"everyone" is not a network`}},
		"half of TLS":        {memory("-tls-cert", long), 2, []string{"-tls-cert and -tls-key"}},
		"no certificate":     {memory("-listen", "127.0.0.1:0", "-tls-cert", long, "-tls-key", long), 1, []string{"-tls"}},
		"address":            {memory("-listen", "nonsense"), 1, []string{"nonsense"}},
		"argument":           {memory("serve"), 2, []string{`unexpected argument "serve"`}},
		"unknown flag":       {memory("-nonsense"), 2, []string{"-nonsense"}},
		"not a duration":     {memory("-ttl", "soon"), 2, []string{"-ttl"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, stdout, stderr := runProgram(t, nil, test.args...)
			require.Equal(t, test.wantStatus, status, stderr)
			require.Empty(t, stdout)
			lines := errorLines(stderr)
			require.Len(t, lines, 1, stderr)
			for _, want := range test.wantErrors {
				require.Contains(t, lines[0], want)
			}
			require.NotContains(t, stderr, "topsecret")
		})
	}
}

// errorLines returns the lines of stderr that do not belong to the log.
func errorLines(stderr string) (lines []string) {
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, "{") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Each flag has an environment variable. An error about a variable names the variable. A flag outranks its variable.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	status, _, stderr := runProgram(t, []string{"IDEMPOTENCY_PROXY_TTL=soon", "IDEMPOTENCY_PROXY_STORE=memory:"})
	require.Equal(t, 2, status)
	require.Contains(t, stderr, "IDEMPOTENCY_PROXY_TTL")
	require.NotContains(t, stderr, "-store")
	hidden := []string{"IDEMPOTENCY_PROXY_STORE=redis://:secret@127.0.0.1:1"}
	_, _, stderr = runProgram(t, hidden)
	require.NotContains(t, stderr, "-store")
	_, _, stderr = runProgram(t, hidden, "-store", "redis://:topsecret@127.0.0.1:1")
	require.Contains(t, stderr, "-store has a password")
	status, _, stderr = runProgram(t, []string{"IDEMPOTENCY_PROXY_METHODS=GET"}, "-methods", "PUT")
	require.Equal(t, 2, status)
	require.NotContains(t, stderr, "-methods")
}

func TestVersionAndHelp(t *testing.T) {
	t.Parallel()
	status, stdout, stderr := runProgram(t, nil, "-version")
	require.Zero(t, status)
	require.Contains(t, stdout, "go1.")
	require.Empty(t, stderr)
	status, stdout, stderr = runProgram(t, nil, "-h")
	require.Zero(t, status)
	require.Contains(t, stdout, "-upstream")
	require.Empty(t, stderr)
}

// The healthcheck of a container uses the environment variables of the proxy.
func TestHealthcheck(t *testing.T) {
	t.Parallel()
	p := startProxy(t, "http://127.0.0.1:1", append(userHeaderFlags, "-store", "memory:")...)
	admin := "IDEMPOTENCY_PROXY_ADMIN=" + strings.TrimPrefix(p.adminURL, "http://")
	status, _, stderr := runProgram(t, []string{admin}, "-healthcheck")
	require.Zero(t, status, stderr)
	p.kill()
	status, _, stderr = runProgram(t, []string{admin}, "-healthcheck")
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "refused")
	status, _, stderr = runProgram(t, nil, "-healthcheck")
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "-admin: ")

	other := startService(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	status, _, stderr = runProgram(t, nil, "-healthcheck", "-admin", other.Listener.Addr().String())
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "404")
}

// The pages link the file flags.txt, which has the help of the program, and name only flags in this file. To update the
// file:
//
//	go run ./cmd/idempotency-proxy -h > cmd/idempotency-proxy/flags.txt
func TestPagesHaveTheFlags(t *testing.T) {
	t.Parallel()
	_, help, _ := runProgram(t, nil, "-h")
	listed, err := os.ReadFile("flags.txt")
	require.NoError(t, err)
	require.Equal(t, help, string(listed))
	flags := map[string]bool{}
	for _, flag := range flagHelp.FindAllStringSubmatch(help, -1) {
		flags[flag[1]] = true
	}
	require.Greater(t, len(flags), 40)
	for _, file := range []string{"README.md", "../../docs/proxy.md"} {
		page, err := os.ReadFile(file)
		require.NoError(t, err)
		named := flagNamed.FindAllStringSubmatch(string(page), -1)
		require.NotEmpty(t, named)
		for _, flag := range named {
			require.True(t, flags[flag[1]], "%s names -%s", file, flag[1])
		}
	}
}

var (
	flagHelp  = regexp.MustCompile(`(?m)^  -(\S+)`)
	flagNamed = regexp.MustCompile("`-([a-z][a-z0-9-]+)")
)
