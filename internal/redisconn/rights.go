package redisconn

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// rightTrials returns a harmless use of each command that the store sends, or that its scripts call. Redis checks the rights
// of a user before it looks at what a command is to do, so the trials change nothing: key does not exist, and HSET lacks a
// value. Only HSETNX makes a hash, which the next trials remove.
func rightTrials(key string) [][]any {
	return [][]any{
		{"get", key},
		{"getex", key},
		{"set", key, "", "xx", "px", 1},
		{"getrange", key, 0, 0},
		{"pttl", key},
		{"exists", key},
		{"hget", key, ""},
		{"hset", key, "", "", "a field without a value"},
		{"hgetall", key},
		{"hsetnx", key, "", ""},
		{"pexpire", key, 1},
		{"unlink", key},
		{"rename", key, key},
		{"eval", "return 1", 1, key},
		{"evalsha", "", 1, key},
	}
}

// checkRights returns which rights the user of node lacks for records under prefix, as ACL SETUSER writes them: commands,
// and the pattern of the keys. It returns nothing if the server knows no rights, or cannot be asked.
func checkRights(ctx context.Context, node redis.Cmdable, prefix string) (missing []string) {
	trials := rightTrials(prefix + "rights")
	pipe := node.Pipeline()
	for _, command := range trials {
		pipe.Do(ctx, command...)
	}
	replies, _ := pipe.Exec(ctx) // each reply has an error of its own
	keysDenied := false
	for i, reply := range replies {
		err := reply.Err()
		switch {
		case err == nil || !redis.HasErrorPrefix(err, "NOPERM"):
		case isKeyDenied(err):
			keysDenied = true
		default:
			missing = append(missing, fmt.Sprint("+", trials[i][0]))
		}
	}
	if keysDenied {
		missing = append(missing, "~"+prefix+"*")
	}
	return missing
}

// isKeyDenied reports whether a user may use a command, but not on its keys. Redis 6 and 7 word it differently.
func isKeyDenied(denied error) bool {
	return strings.Contains(denied.Error(), "access a key") || strings.Contains(denied.Error(), "access one of the keys")
}
