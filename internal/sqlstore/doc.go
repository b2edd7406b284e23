// Package sqlstore is what the stores over package database/sql have in common. A store adds its statements, its clock,
// and the meaning of its driver's errors. Package pgxstore, which has a driver of its own, shares [Janitor] and the
// errors of a transaction.
//
// [Row] is a record as it is stored. It decides what others see of the record, and who may claim its key. [Claim] makes
// a claim that is a lease, by the [Steps] of the store. [NewTxClaim] makes a claim that is a transaction, by the
// [Attempt] of the store. [Dialect] gives that transaction to the handler as a [database/sql.Tx].
package sqlstore
