// Package sqlstore is what the stores in SQL have in common, and in part the store in DynamoDB. It knows no driver. A store
// adds its statements, its clock, and the meaning of its driver's errors.
//
// An [Engine] speaks the protocol of a database, and is another one. What statements use of SQL are [Feature]s, and an engine
// has those that its documentation shows.
//
// The rest is for stores over package database/sql, which package pgxstore is not, and for package dynamodbstore, which has no
// transactions. [Row] is a record as it is stored. It decides what others see of the record, and who may claim its key.
// [Claim] makes a claim by the [Steps] of the store. Such a claim runs steps in transactions if the store is a [TxLeases]: the
// handler has the [database/sql.Tx] of a [StepConn]. [Seen] is a record as people are told of it, [Lister] finds records,
// and [Forget] and [Resolve] are what operators do.
package sqlstore
