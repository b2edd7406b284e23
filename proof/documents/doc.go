// Package documents tests the documents of the repository against what they write about: the README and the pages of docs
// show code that runs, figures that were measured, files, options and tests that are there, and each exported function has
// an example. It has no code but its tests.
package documents
