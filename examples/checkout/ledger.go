package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
)

// ledger is the book of charges, in SQL that SQLite and PostgreSQL understand.
type ledger struct {
	db     *sql.DB
	inStep doTx // makes a charge a step; nil if the store of the keys has no transactions of the ledger
}

// doTx is a DoTx of a store.
type doTx func(ctx context.Context, name string, fn func(tx *sql.Tx) (string, error)) (string, error)

// The operation is unique. Where a charge is a step, nothing else is needed for one charge. Where the keys are in Redis, the
// next attempt finds the charge of one that died by it. If Redis has lost a record, the fingerprint shows whether its key
// comes back with another payment.
const schema = `
CREATE TABLE charges (
	operation text PRIMARY KEY, fingerprint text NOT NULL,
	side text NOT NULL, purchase text NOT NULL, amount bigint NOT NULL, receipt text NOT NULL
);
CREATE TABLE outcomes (outcome text NOT NULL)`

// payment is what a customer orders.
type payment struct {
	Purchase string `json:"purchase"`
	Amount   int64  `json:"amount"` // in hundredths
}

// errOtherPayment says that the operation has charged another payment.
var errOtherPayment = errors.New("the key was used for another payment")

// querier is a database, or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// charge charges the customer, and returns the receipt. Each call with another operation is another charge.
func (l *ledger) charge(ctx context.Context, side, operation, fingerprint string, p payment) (receipt string, err error) {
	if l.inStep == nil || side == without {
		return insertCharge(ctx, l.db, side, operation, fingerprint, p)
	}
	return l.inStep(ctx, "charge", func(tx *sql.Tx) (string, error) {
		return insertCharge(ctx, tx, side, operation, fingerprint, p)
	})
}

func insertCharge(ctx context.Context, db querier, side, operation, fingerprint string, p payment) (receipt string, err error) {
	const insert = `INSERT INTO charges (operation, fingerprint, side, purchase, amount, receipt) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (operation) DO UPDATE SET operation = excluded.operation RETURNING receipt, fingerprint`
	var stored string
	row := db.QueryRowContext(ctx, insert, operation, fingerprint, side, p.Purchase, p.Amount, "R-"+rand.Text()[:6])
	if err := row.Scan(&receipt, &stored); err != nil {
		return "", err
	}
	if stored != fingerprint {
		return "", errOtherPayment
	}
	return receipt, nil
}

// account is what was charged.
type account struct {
	Charges int   `json:"charges"`
	Total   int64 `json:"total"` // in hundredths
}

// account returns what was charged for a purchase, or for all of them if it is empty.
func (l *ledger) account(ctx context.Context, side, purchase string) (a account, err error) {
	const sum = `SELECT count(*), CAST(coalesce(sum(amount), 0) AS bigint) FROM charges
		WHERE side = $1 AND ($2 = '' OR purchase = $2)`
	err = l.db.QueryRowContext(ctx, sum, side, purchase).Scan(&a.Charges, &a.Total)
	return a, err
}

// charges lists all charges of the side that has the middleware, a line for each.
func (l *ledger) charges(ctx context.Context) (lines []string, err error) {
	const list = "SELECT operation || ' ' || receipt FROM charges WHERE side = $1 ORDER BY operation"
	rows, err := l.db.QueryContext(ctx, list, with)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	return lines, rows.Err()
}

// note writes down what became of a request.
func (l *ledger) note(ctx context.Context, outcome string) error {
	_, err := l.db.ExecContext(ctx, "INSERT INTO outcomes (outcome) VALUES ($1)", outcome)
	return err
}

// outcomes returns how many requests had each outcome.
func (l *ledger) outcomes(ctx context.Context) (map[string]int, error) {
	rows, err := l.db.QueryContext(ctx, "SELECT outcome, count(*) FROM outcomes GROUP BY outcome")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	counts := make(map[string]int)
	for rows.Next() {
		var outcome string
		var count int
		if err := rows.Scan(&outcome, &count); err != nil {
			return nil, err
		}
		counts[outcome] = count
	}
	return counts, rows.Err()
}

// books are what was charged.
type books struct {
	Server  status  `json:"server"`
	Without account `json:"without"`
	With    account `json:"with"`
}
