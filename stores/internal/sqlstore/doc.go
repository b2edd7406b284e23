// Package sqlstore is the common part of the SQL stores. Packages dynamodbstore and casstore use a part of sqlstore, too. Package
// sqlstore knows no driver: each store adds statements, a clock, and the meaning of driver errors.
//
// An [Engine] is a server with the protocol of a database but a different implementation. A [Feature] is a part of SQL
// used by statements. The documentation of an engine says whether the engine has a feature.
//
// The rest serves the stores over package database/sql, and packages dynamodbstore and casstore, whose databases have no
// transactions. Package pgxstore has claims of its own, and uses only parts such as names, checks and pauses. A [Row] is a stored record, and decides how requests see the record and who may claim
// the key. [Claim] claims a key with the [Steps] of the store. If the store is a [TxLeases], a claim also runs steps in
// transactions, and gives the handler the [database/sql.Tx] of a [StepConn]. A [Seen] is a record as operators see the
// record. [Lister] finds records; [Forget] and [Resolve] change records for operators.
package sqlstore
