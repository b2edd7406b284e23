//go:build unix

package servertest_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

func TestPrometheusKnowsItsRules(t *testing.T) {
	t.Parallel()
	s := servertest.Prometheus(t, map[string]string{
		"prometheus.yml": "rule_files: [rules.yml]",
		"rules.yml":      "groups: [{name: all, rules: [{record: two, expr: 1 + 1}]}]",
	})
	for range 2 {
		resp, err := http.Get("http://" + s.Addr() + "/api/v1/rules")
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Contains(t, string(body), `"name":"two"`)
		require.NoError(t, s.Restart())
	}
}
