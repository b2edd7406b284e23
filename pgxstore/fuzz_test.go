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

// commitsByForm says what commits in another way than the package does.
func commitsByForm(sql string) bool {
	sql = behindBlanks(sql, true)
	first := wordForm.FindString(sql)
	rest := behindBlanks(sql[len(first):], false)
	second := wordForm.FindString(rest)
	switch strings.ToUpper(first) {
	case "COMMIT", "END":
		return rest == "" || rest[0] == ';' || endForm.MatchString(second)
	case "PREPARE":
		return strings.EqualFold(second, "transaction")
	}
	return false
}

// FuzzCommits looks for SQL of which another reader says otherwise whether it commits. TestWhatCommitsInTheServer asks
// PostgreSQL.
func FuzzCommits(f *testing.F) {
	for _, sql := range []string{
		"COMMIT", "-- a\n/* b /* c */ */;END", "prepare/**/transaction", "/*", "--", "end-of-day", "end;", "commit and chain",
		"end/*/**/*/work", "commits", "end transactions", "/*/ */ END", "commit --", "END é", "commit prepared 'a'",
		"-- a\rCOMMIT", "--\r/*\n*/end",
	} {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		got := pgxstore.Commits(sql)
		require.Equal(t, commitsByForm(sql), got, "%q", sql)
		require.Equal(t, got, pgxstore.Commits(" ;/* /* */ */-- a\n"+sql), "%q behind a comment", sql)
	})
}
