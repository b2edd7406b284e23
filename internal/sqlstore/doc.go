// Package sqlstore is what the stores over package database/sql have in common. A store adds a dialect: its statements,
// its clock, and the errors of its driver. Package pgxstore, which has a driver of its own, shares [Janitor] and the
// errors of a transaction.
//
// [Row] is a record as it is stored, and decides what others see of it and who may claim its key. [Claim] makes a claim
// that is a lease, by the [Steps] of the store. [NewTxClaim] makes one that is a transaction, by the [Attempt] of the
// store, and [Dialect] gives that to the handler as a [database/sql.Tx].
package sqlstore
