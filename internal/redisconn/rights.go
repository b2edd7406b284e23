package redisconn

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Rights are the commands and keys to which the user of the client needs rights.
type Rights struct {
	Uses    [][]any // harmless commands, each of which needs one of the rights
	Pattern string  // matches the keys of the commands
}

// checkRights reports the commands in rights that the server does not know or the user of node may not send, and
// whether the user lacks the right to a key. If node does not answer, checkRights reports nothing.
func (c *Conn) checkRights(ctx context.Context, node redis.Cmdable, rights Rights) (found []Unsafe) {
	const risk = "steps of the store fail: requests get 503, or run and their answers are not stored"
	uses := rights.Uses
	if _, cluster := c.client.(*redis.ClusterClient); cluster {
		uses = append([][]any{{"asking"}}, uses...) // clients send ASKING while a slot moves
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

// isKeyDenied reports whether the user may send the command, but not for its keys. Redis 6 and 7 use different texts.
func isKeyDenied(denied error) bool {
	return strings.Contains(denied.Error(), "access a key") || strings.Contains(denied.Error(), "access one of the keys")
}

// deniedCommand returns the command that the user may not send. The command may differ from sent, because on a new
// connection the client first sends other commands such as SELECT.
func deniedCommand(denied error, sent string) string {
	_, rest, quoted := strings.Cut(denied.Error(), "run the '")
	if name, _, ok := strings.Cut(rest, "'"); quoted && ok {
		return name
	}
	return sent
}

// userOf returns " to user NAME" for the user name of node, or the empty string if node does not show the name.
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
