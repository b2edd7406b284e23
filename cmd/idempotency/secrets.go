package main

import (
	"context"
	"net/url"
	"slices"
	"strings"
)

// secrets are what must not be printed. Errors of pgx and go-redis may have parts of a URL in them.
type secrets struct{ all []string }

// secretVariables are the variables of the environment that have a password, or may have one within.
var secretVariables = []string{"REDISCLI_AUTH", "PGPASSWORD", "MYSQL_PWD", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", redisVariable,
	databaseVariable}

// secretsIn returns the secrets that the environment has, and the arguments, where they should not be.
func secretsIn(env func(string) (string, bool), args []string) *secrets {
	s := new(secrets)
	for _, arg := range args {
		if strings.Contains(arg, "://") {
			s.addURL(arg)
		}
	}
	for _, name := range secretVariables {
		value, _ := env(name)
		s.add(value)
		if strings.Contains(value, "://") {
			s.addURL(value)
		}
	}
	return s
}

// addURL adds the passwords in a URL, as they are written and as they are meant. The URL may be malformed.
func (s *secrets) addURL(text string) {
	if _, rest, ok := strings.Cut(text, "://"); ok {
		if at := strings.LastIndex(rest, "@"); at >= 0 {
			if _, password, ok := strings.Cut(rest[:at], ":"); ok {
				s.add(password)
			}
		}
	}
	u, err := url.Parse(text)
	if err != nil {
		return
	}
	password, _ := u.User.Password()
	s.add(password)
	for name, values := range u.Query() {
		if strings.Contains(strings.ToLower(name), "password") {
			for _, value := range values {
				s.add(value)
				s.add(url.QueryEscape(value))
			}
		}
	}
}

func (s *secrets) add(secret string) {
	if secret != "" {
		s.all = append(s.all, secret)
	}
}

// hide returns text without the secrets. A longer one may begin with a shorter one.
func (s *secrets) hide(text string) string {
	for _, secret := range slices.SortedFunc(slices.Values(s.all), func(a, b string) int { return len(b) - len(a) }) {
		text = strings.ReplaceAll(text, secret, "***")
	}
	return text
}

// quiet keeps the log of go-redis from the terminal: what matters is in the error.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
