package killtest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	mathrand "math/rand/v2"

	"github.com/idempotency-go/idempotency"
)

// Ledger is the database of [Transfers], with a table of accounts and a table of transfers.
type Ledger struct{ DB *sql.DB }

// Row is a row of a transfer. A transfer has two rows: one for the paying account, one for the receiving account.
type Row struct {
	Operation string // ID of the key
	Receipt   string // of the provider
	Entry     string // random, new for each execution of the step
	Account   int
	Amount    int
}

const accountCount = 10

// Create creates the tables.
func (l Ledger) Create(ctx context.Context) error {
	statements := []string{
		"CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)",
		"CREATE TABLE transfers (operation VARCHAR(50), receipt VARCHAR(50), entry VARCHAR(50), account INTEGER, amount INTEGER)",
	}
	for id := range accountCount {
		statements = append(statements, fmt.Sprintf("INSERT INTO accounts VALUES (%d, 0)", id))
	}
	for _, statement := range statements {
		if _, err := l.DB.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// Read returns all rows, or an error if the balance of an account is not the sum of the rows of the account.
func (l Ledger) Read(ctx context.Context) (all []Row, err error) {
	rows, err := l.DB.QueryContext(ctx, "SELECT operation, receipt, entry, account, amount FROM transfers")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var row Row
		if err := rows.Scan(&row.Operation, &row.Receipt, &row.Entry, &row.Account, &row.Amount); err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	const wrong = `SELECT COUNT(*) FROM accounts
		WHERE balance <> (SELECT COALESCE(SUM(amount), 0) FROM transfers WHERE account = id)`
	n := 0
	if err := l.DB.QueryRowContext(ctx, wrong).Scan(&n); err != nil {
		return nil, err
	}
	if n > 0 {
		return nil, fmt.Errorf("%d accounts have a balance that is not the sum of their rows", n)
	}
	return all, nil
}

// WriteRows writes the rows of the operation of ctx with four statements, and returns the entry of the rows.
// WriteRows locks the two accounts in a random order, so some databases report deadlocks.
func WriteRows(ctx context.Context, receipt string, exec func(statement string) error) (entry string, err error) {
	op, _ := idempotency.FromContext(ctx)
	entry = rand.Text()
	amount, payer := 1+mathrand.N(100), mathrand.N(accountCount)
	receiver := (payer + 1 + mathrand.N(accountCount-1)) % accountCount
	for _, row := range []Row{{Account: payer, Amount: -amount}, {Account: receiver, Amount: amount}} {
		for _, statement := range []string{
			fmt.Sprintf("UPDATE accounts SET balance = balance + %d WHERE id = %d", row.Amount, row.Account),
			fmt.Sprintf("INSERT INTO transfers VALUES ('%s', '%s', '%s', %d, %d)",
				op.Key.ID, receipt, entry, row.Account, row.Amount),
		} {
			if err := exec(statement); err != nil {
				return "", err
			}
		}
	}
	return entry, nil
}

// Book writes the rows of the operation of ctx in a step with a transaction. The result of the step is the entry of
// the rows.
type Book func(ctx context.Context, receipt string) (entry string, err error)

const bookStep = "book"

// BookTx returns a Book that calls doTx, the DoTx of a store.
func BookTx(doTx func(ctx context.Context, name string, fn func(tx *sql.Tx) (string, error)) (string, error)) Book {
	return func(ctx context.Context, receipt string) (string, error) {
		return doTx(ctx, bookStep, func(tx *sql.Tx) (string, error) { return WriteRows(ctx, receipt, execIn(ctx, tx)) })
	}
}

// BookInTx returns a Book that begins a transaction of db, calls doInTx, the DoInTx of a store, in the transaction,
// and commits.
func BookInTx[Tx any](
	db *sql.DB, doInTx func(ctx context.Context, tx Tx, name string, fn func() (string, error)) (string, error),
) Book {
	return func(ctx context.Context, receipt string) (string, error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return "", err
		}
		defer func() { _ = tx.Rollback() }() // has no effect after the commit
		entry, err := doInTx(ctx, any(tx).(Tx), bookStep, func() (string, error) {
			return WriteRows(ctx, receipt, execIn(ctx, tx))
		})
		if err != nil {
			return "", err
		}
		return entry, tx.Commit()
	}
}

// Alternate returns a Book that calls a random Book of books for each attempt.
func Alternate(books ...Book) Book {
	return func(ctx context.Context, receipt string) (string, error) {
		return books[mathrand.N(len(books))](ctx, receipt)
	}
}

func execIn(ctx context.Context, tx *sql.Tx) func(statement string) error {
	return func(statement string) error {
		_, err := tx.ExecContext(ctx, statement)
		return err
	}
}
