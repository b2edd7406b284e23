// Package board reads the Grafana dashboard of otelidempotency, and asks Prometheus what its panels show.
package board

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// Panel is a panel of the dashboard.
type Panel struct {
	ID          int
	Type        string
	Title       string
	GridPos     struct{ X, Y, W, H int }
	FieldConfig struct {
		Defaults struct {
			Unit   string
			Custom struct{ Stacking struct{ Mode string } }
		}
	}
	Datasource struct{ UID string }
	Targets    []Target
}

// Target is a query of a panel.
type Target struct{ Expr, LegendFormat string }

// Load returns the panels of a dashboard.
func Load(file string) ([]Panel, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var dashboard struct{ Panels []Panel }
	return dashboard.Panels, json.Unmarshal(content, &dashboard)
}

// Query returns the expression of a target for a job, with a window in the place of the intervals of Grafana.
func (t Target) Query(job string, window time.Duration) string {
	interval := fmt.Sprintf("%dms", window.Milliseconds())
	return strings.NewReplacer("$job", job, "$__rate_interval", interval, "$__range", interval).Replace(t.Expr)
}

var field = regexp.MustCompile(`{{(\w+)}}`)

// Legend returns how a target names a series.
func (t Target) Legend(labels model.Metric) string {
	return field.ReplaceAllStringFunc(t.LegendFormat, func(name string) string {
		return string(labels[model.LabelName(strings.Trim(name, "{}"))])
	})
}

// Config returns a configuration for Prometheus that scrapes targets, which are addresses by the names of their jobs. The
// rules are in alerts.yml.
func Config(targets map[string]string, interval time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "global: {scrape_interval: %[1]v, scrape_timeout: %[1]v, evaluation_interval: %[1]v}\n", interval)
	b.WriteString("rule_files: [alerts.yml]\nscrape_configs:\n")
	for job, address := range targets {
		fmt.Fprintf(&b, "  - {job_name: %q, static_configs: [{targets: [%q]}]}\n", job, address)
	}
	return b.String()
}

// Prometheus answers queries.
type Prometheus struct{ prometheus.API }

// Connect returns the Prometheus at an address.
func Connect(address string) (Prometheus, error) {
	client, err := api.NewClient(api.Config{Address: "http://" + address})
	return Prometheus{prometheus.NewAPI(client)}, err
}

// Numbers returns what a target shows for a job at a time, by the names of its series.
func (p Prometheus) Numbers(ctx context.Context, t Target, job string, window time.Duration, at time.Time) (map[string]float64, error) {
	value, _, _, err := p.Query(ctx, t.Query(job, window), at)
	if err != nil {
		return nil, err
	}
	numbers := map[string]float64{}
	for _, sample := range value.(model.Vector) {
		numbers[t.Legend(sample.Metric)] = float64(sample.Value)
	}
	return numbers, nil
}

// Scrapes returns when a job was scraped in the last ten minutes.
func (p Prometheus) Scrapes(ctx context.Context, job string) (times []time.Time, err error) {
	value, _, _, err := p.Query(ctx, fmt.Sprintf("idempotency_leases_lost_total{job=%q}[10m]", job), time.Now())
	if err != nil {
		return nil, err
	}
	for _, series := range value.(model.Matrix) {
		for _, sample := range series.Values {
			times = append(times, sample.Timestamp.Time())
		}
	}
	return times, nil
}

// Alerts returns the alerts that wait or fire, by jobs.
func (p Prometheus) Alerts(ctx context.Context) (map[string][]string, error) {
	result, err := p.API.Alerts(ctx)
	if err != nil {
		return nil, err
	}
	alerts := map[string][]string{}
	for _, alert := range result.Alerts {
		job := string(alert.Labels["job"])
		alerts[job] = append(alerts[job], string(alert.Labels["alertname"]))
		slices.Sort(alerts[job])
	}
	return alerts, nil
}
