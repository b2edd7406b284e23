package main

import (
	"context"
	"net/url"
	"slices"
	"strings"
)

// secretSet has the texts to hide in all output, because errors of pgx and go-redis may contain parts of a URL.
type secretSet struct{ values []string }

// secretVariables are the environment variables that are a password or may contain a password.
var secretVariables = []string{"REDISCLI_AUTH", "PGPASSWORD", "MYSQL_PWD", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", redisVariable,
	databaseVariable}

// collectSecrets returns the secrets in the environment and in the arguments. Arguments should have no secrets, but may.
func collectSecrets(env func(string) (string, bool), args []string) *secretSet {
	s := new(secretSet)
	for _, arg := range args {
		if strings.Contains(arg, "://") {
			s.addFromURL(arg)
		}
	}
	for _, name := range secretVariables {
		value, _ := env(name)
		s.addValue(value)
		if strings.Contains(value, "://") {
			s.addFromURL(value)
		}
	}
	return s
}

// addFromURL adds the passwords in a URL, both escaped and unescaped. The URL may be malformed.
func (s *secretSet) addFromURL(text string) {
	if _, rest, ok := strings.Cut(text, "://"); ok {
		if at := strings.LastIndex(rest, "@"); at >= 0 {
			if _, password, ok := strings.Cut(rest[:at], ":"); ok {
				s.addValue(password)
			}
		}
	}
	u, err := url.Parse(text)
	if err != nil {
		return
	}
	password, _ := u.User.Password()
	s.addValue(password)
	for name, values := range u.Query() {
		if strings.Contains(strings.ToLower(name), "password") {
			for _, value := range values {
				s.addValue(value)
				s.addValue(url.QueryEscape(value))
			}
		}
	}
}

func (s *secretSet) addValue(secret string) {
	if secret != "" {
		s.values = append(s.values, secret)
	}
}

// hideSecrets replaces all secrets in text by "***". Longer secrets come first because a secret may contain a shorter secret.
func (s *secretSet) hideSecrets(text string) string {
	for _, secret := range slices.SortedFunc(slices.Values(s.values), func(a, b string) int { return len(b) - len(a) }) {
		text = strings.ReplaceAll(text, secret, "***")
	}
	return text
}

// silentLogger discards the log of go-redis, because the error has the same information.
type silentLogger struct{}

func (silentLogger) Printf(context.Context, string, ...any) {}
