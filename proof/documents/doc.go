// Package documents tests the documents of the repository against the code and the files. The README and the pages of
// docs show running code and measured figures, and name existing files, options and tests. Each exported function has an
// example. The package has only tests.
package documents
