//go:build unix

package servertest

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
)

// scramSecret returns what PostgreSQL stores of a password, and takes in its place: see RFC 5803. Usually there are
// thousands of iterations, for passwords that could be guessed. This one needs a single one, which saves each
// connection of a client with the race detector more than ten milliseconds.
func scramSecret(password string) (string, error) {
	const iterations = 1
	salt := []byte(rand.Text())
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return "", err
	}
	sign := func(text string) []byte {
		h := hmac.New(sha256.New, salted)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	stored := sha256.Sum256(sign("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s",
		iterations, encode(salt), encode(stored[:]), encode(sign("Server Key"))), nil
}
