//go:build !linux

package sqlitestore

// fileSystemOf knows nothing.
func fileSystemOf(string) (fileSystem, error) { return fileSystem{}, nil }
