package redisconn

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Rights are what Check looks for in the rights of a user.
type Rights struct {
	Uses    [][]any // commands whose use changes nothing
	Pattern string  // of the keys that the commands use
}

// checkRights reports which commands of rights the server does not know, or the user of node may not send, and whether the user
// lacks the right to a key. It reports nothing if the server cannot be asked.
func (c *Conn) checkRights(ctx context.Context, node redis.Cmdable, rights Rights) (found []Unsafe) {
	const risk = "steps of the store fail: requests get 503, or run and their answers are not stored"
	uses := rights.Uses
	if _, cluster := c.client.(*redis.ClusterClient); cluster {
		uses = append([][]any{{"asking"}}, uses...) // sent while a slot moves
	}
	pipe := node.Pipeline()
	for _, use := range uses {
		pipe.Do(ctx, use...)
	}
	replies, _ := pipe.Exec(ctx) // each reply has an error of its own
	value := "not given" + userOf(node)
	report := func(setting, value string) {
		finding := Unsafe{nodeName(node), setting, value, risk}
		if !slices.Contains(found, finding) {
			found = append(found, finding)
		}
	}
	for i, reply := range replies {
		switch err := reply.Err(); {
		case err == nil:
		case redis.HasErrorPrefix(err, "unknown command"):
			report(fmt.Sprint("command ", uses[i][0]), "unknown")
		case !redis.HasErrorPrefix(err, "NOPERM"):
		case isKeyDenied(err):
			report("right ~"+rights.Pattern, value)
		default:
			report("right +"+deniedCommand(err, uses[i][0].(string)), value)
		}
	}
	return found
}

// isKeyDenied reports whether a user may use a command, but not on its keys. Redis 6 and 7 word it differently.
func isKeyDenied(denied error) bool {
	return strings.Contains(denied.Error(), "access a key") || strings.Contains(denied.Error(), "access one of the keys")
}

// deniedCommand returns the command that a user may not send. It is not the one that was sent if the client sends another first
// on a new connection, as SELECT is.
func deniedCommand(denied error, sent string) string {
	_, rest, quoted := strings.Cut(denied.Error(), "run the '")
	if name, _, ok := strings.Cut(rest, "'"); quoted && ok {
		return name
	}
	return sent
}

// userOf returns " to user NAME" for the user as whom node logs in, or nothing if node does not tell.
func userOf(node redis.Cmdable) string {
	c, ok := node.(*redis.Client)
	if !ok {
		return ""
	}
	o := c.Options()
	if o.CredentialsProvider != nil || o.CredentialsProviderContext != nil || o.StreamingCredentialsProvider != nil {
		return ""
	}
	if o.Username == "" {
		return " to user default"
	}
	return " to user " + o.Username
}
