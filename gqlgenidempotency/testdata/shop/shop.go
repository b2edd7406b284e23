// Package shop is a small GraphQL API, for tests and an example. All but its schema and this file is generated.
package shop

//go:generate go run github.com/99designs/gqlgen@v0.17.98 generate
