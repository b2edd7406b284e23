// Package api is the strict server that oapi-codegen generates from openapi.yaml.
package api

//go:generate go run github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2 -config config.yaml openapi.yaml
