// Idempotency is a command for support and operators. The command inspects, lists, exports, resolves, forgets and erases the
// records of a service, probes whether a service is idempotent, and describes the operation of an idempotency key.
//
//	export DATABASE_URL=postgres://app@db/shop
//	idempotency inspect --user alice --endpoint 'POST /payments' --key order-1
//
// The README lists all commands. The page for support explains what to do about each result:
// https://github.com/idempotency-go/idempotency/blob/main/docs/support.md
//
// # JSON
//
// With --json a command prints one document, or none if the command fails or refuses: the exit status tells. The names in
// a document are stable, and new names may be added. Unknown values are left out. Times are RFC 3339 in UTC, durations
// are milliseconds, and sizes are bytes. Documents by command:
//
//   - inspect: `store`, `found`, `story`, `entry`.
//   - forget: the same, and `forgotten`.
//   - resolve: the same as inspect, and `resolved` and `resolution`. The entry is as it was shown. The resolution has
//     `happened`, `status`, `header`, `omitted`, `bodySize`, `operator`, `reason` and `remainingMs`.
//   - list: `store`, `entries`, `next` (for --after, if there is another page), `totals` by state with `records` and `bytes`,
//     `partial`, `unreadable`.
//   - erase: `store`, and the numbers of records `erased`, `running` and `unreadable`.
//   - export: an entry on each line, without `note`, and with pseudonyms for `user`, `endpoint` and `key`, unless --names is given.
//     The `operation` stays, as in logs, and is computed from the three: whoever guesses all three can confirm the guess.
//   - check: `store`, `findings` with `severity` (unsafe or broken) and `problem`.
//   - probe: `results` with `name`, `demands`, `source`, `status` (`passed`, `failed`, `partly made`, `not made`, `skipped`),
//     `detail`, `exchanges` (`curl`, `answer`), `decisions` (`name`, `value`), `notes` and `interrupted`, and `requests`.
//     With --openapi: `operations` with `name`, `key`, `exception`, `asked`, `notAsked` and `findings`, and `findings`.
//   - stats: `store`, `totals`, `partial`, `unreadable`, `abandoned` (entries), `users` with `user`, `records` and `bytes`.
//
// An entry has `state` (`running`, `abandoned`, `released` or `completed`), `user`, `endpoint`, `key`, `operation`,
// `attempt`, `ended` (why the last attempt ended without an answer, if it could say so), `created`, `completed`,
// `leaseLeftMs`, `remainingMs`, `size`, `status`, `note`, `resolved` (with `happened`, `attempt`, `at`, `operator` and
// `reason`, or `sealed`), and `damage` if the record is unreadable.
//
// The entry of inspect also has `response` with `header`, `trailer`, `omitted`, `sealed` and `bodySize`, and with --body
// `body`, or `bodyBase64` if the body is no text. Until the operation is completed, it has `steps` with `name` and `size`. A
// name that ends in ? belongs to a step of step.AtMostOnce that was begun.
//
// Keys, headers, notes and bodies are the text of strangers. Unprintable characters are escaped in both forms of output.
package main

import (
	"os"

	"github.com/redis/go-redis/v9"
)

func main() {
	redis.SetLogger(silentLogger{}) // here because the logger is global, and tests call runProgram concurrently
	os.Exit(runProgram(os.Args[1:], os.LookupEnv, os.Stdin, os.Stdout, os.Stderr))
}
