package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
)

// ledger is the book of charges. Its SQL runs on SQLite and on PostgreSQL.
type ledger struct {
	db      *sql.DB
	runStep doTx // runs a charge as a step; nil if no transaction spans the keys and the ledger
}

// doTx is the function DoTx of a store.
type doTx func(ctx context.Context, name string, fn func(tx *sql.Tx) (string, error)) (string, error)

// schema creates the tables. The operation is the primary key of a charge: if the keys are in Redis, an attempt finds the charge
// of an earlier attempt by the operation. A charge that is a step does not depend on this. If Redis has lost a record, the
// fingerprint shows whether the key was used for another payment.
const schema = `
CREATE TABLE charges (
	operation text PRIMARY KEY, fingerprint text NOT NULL,
	side text NOT NULL, purchase text NOT NULL, amount bigint NOT NULL, receipt text NOT NULL
);
CREATE TABLE outcomes (outcome text NOT NULL)`

// payment is a payment for a purchase, as the customer sends it.
type payment struct {
	Purchase string `json:"purchase"`
	Amount   int64  `json:"amount"` // in cents
	Currency string `json:"currency"`
}

// currency is the only currency of the shop, so the ledger has amounts without a currency.
const currency = "EUR"

// errOtherPayment means that the operation has charged another payment.
var errOtherPayment = errors.New("the key was used for another payment")

// querier is a database or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// chargeCustomer charges the customer, and returns the receipt. Calls with different operations are different charges.
func (l *ledger) chargeCustomer(ctx context.Context, side, operation, fingerprint string, p payment) (receipt string, err error) {
	if l.runStep == nil || side == without {
		return insertCharge(ctx, l.db, side, operation, fingerprint, p)
	}
	return l.runStep(ctx, "charge", func(tx *sql.Tx) (string, error) {
		return insertCharge(ctx, tx, side, operation, fingerprint, p)
	})
}

func insertCharge(ctx context.Context, db querier, side, operation, fingerprint string, p payment) (receipt string, err error) {
	const insert = `INSERT INTO charges (operation, fingerprint, side, purchase, amount, receipt) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (operation) DO UPDATE SET operation = excluded.operation RETURNING receipt, fingerprint`
	var storedFingerprint string
	row := db.QueryRowContext(ctx, insert, operation, fingerprint, side, p.Purchase, p.Amount, "R-"+rand.Text()[:6])
	if err := row.Scan(&receipt, &storedFingerprint); err != nil {
		return "", err
	}
	if storedFingerprint != fingerprint {
		return "", errOtherPayment
	}
	return receipt, nil
}

// account is the number and the sum of charges.
type account struct {
	Charges int   `json:"charges"`
	Total   int64 `json:"total"` // in cents
}

// sumCharges returns the account of side for purchase, or for all purchases if purchase is empty.
func (l *ledger) sumCharges(ctx context.Context, side, purchase string) (a account, err error) {
	const sum = `SELECT count(*), CAST(coalesce(sum(amount), 0) AS bigint) FROM charges
		WHERE side = $1 AND ($2 = '' OR purchase = $2)`
	err = l.db.QueryRowContext(ctx, sum, side, purchase).Scan(&a.Charges, &a.Total)
	return a, err
}

// listCharges returns a line for each charge of the side with the middleware.
func (l *ledger) listCharges(ctx context.Context) (lines []string, err error) {
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

// recordOutcome adds the outcome of a request to the ledger.
func (l *ledger) recordOutcome(ctx context.Context, outcome string) error {
	_, err := l.db.ExecContext(ctx, "INSERT INTO outcomes (outcome) VALUES ($1)", outcome)
	return err
}

// countOutcomes returns the number of requests for each outcome.
func (l *ledger) countOutcomes(ctx context.Context) (map[string]int, error) {
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

// books are the accounts of both sides, and the status of the shop.
type books struct {
	Server  status  `json:"server"`
	Without account `json:"without"`
	With    account `json:"with"`
}
