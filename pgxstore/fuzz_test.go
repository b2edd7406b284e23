package pgxstore_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/pgxstore"
)

var (
	blanks    = regexp.MustCompile(`^(?:[ \t\n\r\f\v]|--[^\r\n]*)+`)
	delimiter = regexp.MustCompile(`/\*|\*/`)
	wordForm  = regexp.MustCompile(`^(?:[a-zA-Z0-9_$]|[^\x00-\x7f])*`)
	endForm   = regexp.MustCompile(`^(?i:work|transaction|and|prepared)$`)
	commitEnd = regexp.MustCompile(`^(?i:commit|end)$`)
	quotation = regexp.MustCompile(`^(?s:(?i:e)'(?:[^'\\]|''|\\.?)*(?:'|$)|'(?:[^']|'')*(?:'|$)|"(?:[^"]|"")*(?:"|$))`)
	dollarTag = regexp.MustCompile(`^\$(?:(?:[a-zA-Z_]|[^\x00-\x7f])(?:[a-zA-Z0-9_]|[^\x00-\x7f])*)?\$`)
)

// behindBlanks returns what follows white space, comments and, if they are to be skipped, semicolons.
func behindBlanks(sql string, semicolons bool) string {
	for {
		rest := sql[len(blanks.FindString(sql)):]
		switch {
		case semicolons && rest != "" && rest[0] == ';':
			rest = rest[1:]
		case len(rest) > 1 && rest[:2] == "/*":
			rest = behindComment(rest[2:])
		case rest == sql:
			return rest
		}
		sql = rest
	}
}

// behindComment returns what follows the end of the comment that sql is in.
func behindComment(sql string) string {
	for {
		at := delimiter.FindStringIndex(sql)
		if at == nil {
			return ""
		}
		found := sql[at[0]:at[1]]
		if sql = sql[at[1]:]; found == "*/" {
			return sql
		}
		sql = behindComment(sql)
	}
}

// behindStatement returns what follows the semicolon of the statement that sql begins with, if it has one.
func behindStatement(sql string) string {
	for sql != "" && sql[0] != ';' {
		switch tag := dollarTag.FindString(sql); {
		case tag != "":
			_, sql, _ = strings.Cut(sql[len(tag):], tag)
		case behindBlanks(sql, false) != sql:
			sql = behindBlanks(sql, false)
		default:
			token := quotation.FindString(sql)
			if token == "" && sql[0] != '$' {
				token = wordForm.FindString(sql)
			}
			sql = sql[max(1, len(token)):]
		}
	}
	return strings.TrimPrefix(sql, ";")
}

// commitsByForm says what commits in another way than the package does.
func commitsByForm(sql string) bool {
	body := false // of a function: the only END that commits nothing
	for sql != "" {
		sql = behindBlanks(sql, true)
		first := wordForm.FindString(sql)
		if commitsFirst(sql) && !(body && strings.EqualFold(first, "end")) {
			return true
		}
		rest := behindStatement(sql)
		body = body || strings.Contains(strings.ToLower(strings.TrimSuffix(sql, rest)), "atomic")
		sql = rest
	}
	return false
}

// commitsFirst says whether the first statement commits.
func commitsFirst(sql string) bool {
	first := wordForm.FindString(sql)
	rest := behindBlanks(sql[len(first):], false)
	second := wordForm.FindString(rest)
	if strings.EqualFold(first, "prepare") {
		return strings.EqualFold(second, "transaction")
	}
	return commitEnd.MatchString(first) && (rest == "" || rest[0] == ';' || endForm.MatchString(second))
}

// FuzzCommits looks for SQL of which another reader says otherwise whether it commits. TestWhatCommitsInTheServer asks
// PostgreSQL.
func FuzzCommits(f *testing.F) {
	for _, sql := range []string{
		"COMMIT", "-- a\n/* b /* c */ */;END", "prepare/**/transaction", "/*", "--", "end-of-day", "end;", "commit and chain",
		"end/*/**/*/work", "commits", "end transactions", "/*/ */ END", "commit --", "END é", "commit prepared 'a'",
		"-- a\rCOMMIT", "--\r/*\n*/end", "-- a\n/\n b /*/ c */ */;END",
		"select E'\\';';end", "select '\\';end", "select $a$;end;$a$;commit", `select ";";;END`, "BEGIN ATOMIC SELECT 1; END",
		"-- atomic\nEND",
	} {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		got := pgxstore.Commits(sql)
		require.Equal(t, commitsByForm(sql), got, "%q", sql)
		require.Equal(t, got, pgxstore.Commits(" ;/* /* */ */-- a\n"+sql), "%q behind a comment", sql)
	})
}
