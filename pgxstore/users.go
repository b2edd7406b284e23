package pgxstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

// UserTotal is what the records of one user are together.
type UserTotal struct {
	// User is the user of the records. With DigestNames, User is the SHA-256 of the user in hexadecimal.
	User string

	idempotency.Total
}

// LargestUsers returns the users whose records are the largest together, at most limit of them, the largest first. It reads
// the whole table, but no answers. The role needs SELECT on the table, and no more.
func (t *Table) LargestUsers(ctx context.Context, limit int) (users []UserTotal, err error) {
	sql, err := t.inspecting(ctx)
	if err != nil {
		return nil, failure("users", err)
	}
	err = t.retry(ctx, new(bool), pooled, func(conn *pgx.Conn) error {
		users = nil
		rows, _ := conn.Query(ctx, sql["users"], int64(limit)) // the rows have its error, too
		var u UserTotal
		_, err := pgx.ForEachRow(rows, []any{&u.User, &u.Records, &u.Bytes}, func() error {
			u.User = sqlstore.UnescapeName(u.User)
			users = append(users, u)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, failure("users", err)
	}
	return users, nil
}
