// Package js has the module of the npm package @idempotency-go/client, for services that serve pages without npm. A page
// imports the module from the address at which the service serves [Module], as text/javascript.
package js

import _ "embed"

// Module is the source of the ECMAScript module. The file index.d.ts describes what the module exports.
//
//go:embed index.js
var Module string
