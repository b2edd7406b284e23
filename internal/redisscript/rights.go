package redisscript

// Uses returns a harmless use of each command that the store sends for a request, or that a script calls for one,
// with the keys on which the store uses the command. Redis checks the rights of a user before executing a command, so
// the reply to a use shows whether the user has the right. On missing keys, no use changes anything: SET has XX, HSET
// lacks the value of a field, and RENAME fails.
func Uses(record, staged, steps string) [][]any {
	return [][]any{
		{"get", record},
		{"getex", record},
		{"getrange", record, 0, 0},
		{"pttl", record},
		{"exists", record},
		{"pexpire", record, 1},
		{"set", record, "", "xx", "px", 1},
		{"eval", "return 1", 1, record},
		{"evalsha", "", 1, record},
		{"set", staged, "", "xx", "px", 1},
		{"rename", staged, record},
		{"unlink", staged},
		{"hget", steps, ""},
		{"hset", steps, "", "", "a field without a value"},
		{"hgetall", steps},
		{"pexpire", steps, 1},
		{"unlink", steps},
	}
}

// IndexUses is Uses for the commands that count the records of a user, with the index of a user.
func IndexUses(index string) [][]any {
	return [][]any{
		{"time"},
		{"zcard", index},
		{"zadd", index, "xx", 0, ""},
		{"zrem", index, ""},
		{"zrangebyscore", index, 0, 0},
		{"zrandmember", index, 1},
		{"pexpire", index, 1},
	}
}
