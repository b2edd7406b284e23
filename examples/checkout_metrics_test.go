package examples_test

import (
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

// The dashboard shows what the ledger of the run has, although the server is killed in the middle and counts anew.
func TestDashboardAgreesWithTheLedger(t *testing.T) {
	address := freeAddress(t)
	prometheus := servertest.Prometheus(t, map[string]string{"prometheus.yml": `scrape_configs:
- job_name: checkout
  scrape_interval: 200ms
  static_configs: [{targets: ["` + address + `"]}]`})
	said := runCheckout(t, built(t, "checkout"), withoutStores(), "-load", "200", "-scraped", "-listen", address)
	written := regexp.MustCompile(`outcomes .* map\[executed:(\d+) replayed:(\d+)\]`).FindStringSubmatch(said)
	require.NotNil(t, written, said)
	executed, replayed := number(t, written[1]), number(t, written[2])
	require.InDelta(t, 200, executed, 0)

	// Prometheus extends an increase to the ends of its range: by half an interval each, where the series begins later.
	const most = 0.1
	for panel, want := range map[string]float64{"Requests": executed + replayed, "Replays": replayed} {
		query := dashboardQuery(t, panel)
		require.InEpsilon(t, want, promQL(t, prometheus.Addr(), query), most, query)
	}
	// Without that, the numbers are the same. A count that begins anew is added to the one before.
	for outcome, want := range map[string]float64{"executed": executed, "replayed": replayed} {
		require.InDelta(t, want, totalOf(t, prometheus.Addr(), outcome), 0, outcome)
	}
}

// dashboardQuery returns the query of a panel that shows one number.
func dashboardQuery(t *testing.T, panel string) string {
	t.Helper()
	file, err := os.ReadFile("../adapters/otelidempotency/monitoring/grafana.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title, Type string
			Targets     []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(file, &dashboard))
	for _, p := range dashboard.Panels {
		if p.Title == panel && p.Type == "stat" {
			return strings.NewReplacer("$job", "checkout", "$__range", "5m").Replace(p.Targets[0].Expr)
		}
	}
	require.Fail(t, "no such panel: "+panel)
	return ""
}

// promQL returns the one number that a query gives.
func promQL(t *testing.T, address, query string) float64 {
	t.Helper()
	var found []struct{ Value [2]any }
	askPrometheus(t, address, "/api/v1/query", url.Values{"query": {query}}, &found)
	require.Len(t, found, 1, query)
	return number(t, found[0].Value[1].(string))
}

// totalOf returns how far an outcome was counted by all processes, of which each began at zero.
func totalOf(t *testing.T, address, outcome string) (total float64) {
	t.Helper()
	query := `sum(idempotency_requests_total{job="checkout", idempotency_outcome="` + outcome + `"})`
	var found []struct{ Values [][2]any }
	askPrometheus(t, address, "/api/v1/query_range", url.Values{
		"query": {query}, "step": {"0.1"},
		"start": {strconv.FormatInt(time.Now().Add(-5*time.Minute).Unix(), 10)},
		"end":   {strconv.FormatInt(time.Now().Add(time.Second).Unix(), 10)},
	}, &found)
	require.Len(t, found, 1, query)
	last := 0.0
	for _, sample := range found[0].Values {
		value := number(t, sample[1].(string))
		if value < last {
			total += last
		}
		last = value
	}
	return total + last
}

func askPrometheus(t *testing.T, address, path string, form url.Values, found any) {
	t.Helper()
	resp, err := http.PostForm("http://"+address+path, form)
	require.NoError(t, err)
	defer resp.Body.Close()
	var answer struct {
		Data  struct{ Result any }
		Error string
	}
	answer.Data.Result = found
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&answer))
	require.Empty(t, answer.Error)
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	require.NoError(t, err)
	return n
}

// freeAddress returns one that nobody listens at.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().String()
}
