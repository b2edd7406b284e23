package probe

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// shownBody is how many bytes of a body a report shows.
const shownBody = 2000

// show makes the exchange readable.
func (e *exchange) show() Exchange {
	shown := Exchange{Curl: e.curl(e.baseURL), Answer: e.describe()}
	if e.probeAction != "" {
		shown.Curl += "   # the probe " + e.probeAction
	}
	if e.answer == nil {
		return shown
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s\n", e.answer.protocol, e.describe())
	for _, name := range sortedNames(e.answer.header) {
		for _, value := range e.answer.header[name] {
			if name == "Set-Cookie" || e.isSecret(name) && name != "Www-Authenticate" {
				value = "(not shown)"
			}
			fmt.Fprintf(&text, "%s: %s\n", name, escape(value))
		}
	}
	fmt.Fprintf(&text, "\n%s", showBody(e.answer.body))
	shown.Answer = text.String()
	return shown
}

// escape returns text with escapes for the characters that could change a terminal.
func escape(text string) string {
	var escaped strings.Builder
	for _, r := range text {
		if r == '\n' || strconv.IsPrint(r) {
			escaped.WriteRune(r)
			continue
		}
		escaped.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
	}
	return escaped.String()
}

func showBody(body []byte) string {
	body = bytes.ReplaceAll(body, []byte("\r\n"), []byte("\n"))
	switch {
	case !utf8.Valid(body) || bytes.ContainsFunc(body, isInvisible):
		return fmt.Sprintf("(%d bytes, not a text)", len(body))
	case len(body) > shownBody:
		return fmt.Sprintf("%s... (%d bytes)", body[:shownBody], len(body))
	}
	return string(bytes.TrimRight(body, "\n"))
}

// isInvisible reports whether r could change the state of a terminal or the direction of a text.
func isInvisible(r rune) bool { return !unicode.IsPrint(r) && !strings.ContainsRune("\n\t", r) }

func sortedNames(header http.Header) []string {
	names := make([]string, 0, len(header))
	for name := range header {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// isSecret reports whether the header field name probably has credentials, because of a word in the name.
func (r *request) isSecret(name string) bool { return name != r.keyHeader && isSecretName(name) }

// isSecretName reports whether a header field or a parameter with this name probably has credentials.
func isSecretName(name string) bool {
	for _, part := range []string{"auth", "cookie", "token", "secret", "key", "signature", "password"} {
		if strings.Contains(strings.ToLower(name), part) {
			return true
		}
	}
	return false
}

// curl returns a shell command for sending r to the instance at base.
func (r *request) curl(base string) string {
	built, err := r.build(base)
	if err != nil {
		return "(" + err.Error() + ")"
	}
	words := []string{"curl -i"}
	body := r.body[r.paddingBytes:]
	if r.method != http.MethodPost || len(r.body) == 0 {
		words = append(words, "-X "+quoteShell(r.method))
	}
	words = append(words, quoteShell(withoutSecrets(built.URL)))
	if r.host != "" {
		words = append(words, "-H "+quoteShell("Host: "+r.host))
	}
	for _, name := range sortedNames(r.header) {
		for _, value := range r.header[name] {
			if r.isSecret(name) {
				variable := strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
				words = append(words, fmt.Sprintf(`-H "%s: $%s"`, name, variable))
				continue
			}
			words = append(words, curlField(name, value))
		}
	}
	if r.isChunked {
		words = append(words, "-H 'Transfer-Encoding: chunked'")
	}
	if len(r.body) > 0 && r.header.Get("Content-Type") == "" {
		words = append(words, "-H 'Content-Type:'") // because curl would add its own
	}
	switch { // curl takes a body that begins with @ for the name of a file
	case r.paddingBytes > 0:
		words = append(words, "--data-binary @-")
		return fmt.Sprintf("{ printf '%%%ds' ''; printf %%s %s; } | %s",
			r.paddingBytes, quoteShell(string(body)), strings.Join(words, " "))
	case len(body) > 0 && (!utf8.Valid(body) || bytes.IndexByte(body, 0) >= 0 || body[0] == '@'):
		words = append(words, "--data-binary @-")
		return fmt.Sprintf("printf %s | %s", quoteOctal(body), strings.Join(words, " "))
	case len(body) > 0:
		words = append(words, "--data-binary "+quoteShell(string(body)))
	}
	return strings.Join(words, " ")
}

// withoutSecrets returns address with ... for the values of parameters that probably are credentials.
func withoutSecrets(address *url.URL) string {
	shown := *address
	parts := strings.Split(shown.RawQuery, "&")
	for i, part := range parts {
		if name, _, ok := strings.Cut(part, "="); ok && isSecretName(name) {
			parts[i] = name + "=..."
		}
	}
	shown.RawQuery = strings.Join(parts, "&")
	return shown.String()
}

// curlField returns the option for a header field. An empty value needs a semicolon, because curl removes the field otherwise.
func curlField(name, value string) string {
	if value == "" {
		return "-H " + quoteShell(name+";")
	}
	return "-H " + quoteShell(name+": "+value)
}

// quoteShell quotes text for a POSIX shell.
func quoteShell(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// quoteOctal quotes bytes for the printf of a POSIX shell.
func quoteOctal(data []byte) string {
	var quoted strings.Builder
	quoted.WriteByte('\'')
	for _, b := range data {
		fmt.Fprintf(&quoted, `\%03o`, b)
	}
	quoted.WriteByte('\'')
	return quoted.String()
}
