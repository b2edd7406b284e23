// Package board reads the Grafana dashboard of otelidempotency, and queries Prometheus for the numbers of the panels.
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

// LoadPanels returns the panels of the dashboard in file.
func LoadPanels(file string) ([]Panel, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var dashboard struct{ Panels []Panel }
	return dashboard.Panels, json.Unmarshal(content, &dashboard)
}

// ExpandExpr returns the expression of the target for job. The duration window replaces Grafana's variables for intervals.
func (t Target) ExpandExpr(job string, window time.Duration) string {
	interval := fmt.Sprintf("%dms", window.Milliseconds())
	return strings.NewReplacer("$job", job, "$__rate_interval", interval, "$__range", interval).Replace(t.Expr)
}

var labelPlaceholder = regexp.MustCompile(`{{(\w+)}}`)

// SeriesName returns the legend of the series with the given labels.
func (t Target) SeriesName(labels model.Metric) string {
	return labelPlaceholder.ReplaceAllStringFunc(t.LegendFormat, func(name string) string {
		return string(labels[model.LabelName(strings.Trim(name, "{}"))])
	})
}

// ScrapeConfig returns a configuration with which Prometheus scrapes the addresses in targets, whose keys are the names of
// the jobs. Prometheus reads its rules from alerts.yml.
func ScrapeConfig(targets map[string]string, interval time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "global: {scrape_interval: %[1]v, scrape_timeout: %[1]v, evaluation_interval: %[1]v}\n", interval)
	b.WriteString("rule_files: [alerts.yml]\nscrape_configs:\n")
	for job, address := range targets {
		fmt.Fprintf(&b, "  - {job_name: %q, static_configs: [{targets: [%q]}]}\n", job, address)
	}
	return b.String()
}

// Prometheus is a client of a Prometheus server.
type Prometheus struct{ prometheus.API }

// Connect returns a client of the Prometheus server at address.
func Connect(address string) (Prometheus, error) {
	client, err := api.NewClient(api.Config{Address: "http://" + address})
	return Prometheus{prometheus.NewAPI(client)}, err
}

// QueryNumbers returns the numbers that t shows for job at the given time, by the names of the series.
func (p Prometheus) QueryNumbers(
	ctx context.Context, t Target, job string, window time.Duration, at time.Time,
) (map[string]float64, error) {
	value, _, _, err := p.Query(ctx, t.ExpandExpr(job, window), at)
	if err != nil {
		return nil, err
	}
	numbers := map[string]float64{}
	for _, sample := range value.(model.Vector) {
		numbers[t.SeriesName(sample.Metric)] = float64(sample.Value)
	}
	return numbers, nil
}

// listScrapes returns the times at which job was scraped in the last minute.
func (p Prometheus) listScrapes(ctx context.Context, job string) (times []time.Time, err error) {
	value, _, _, err := p.Query(ctx, fmt.Sprintf("idempotency_leases_lost_total{job=%q}[1m]", job), time.Now())
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

// AwaitScrape waits for a scrape of job that began after the given time, and returns when the scrape began.
func (p Prometheus) AwaitScrape(ctx context.Context, job string, after time.Time) (time.Time, error) {
	for {
		times, err := p.listScrapes(ctx, job)
		if err != nil {
			return time.Time{}, err
		}
		if n := len(times); n > 0 && times[n-1].After(after) {
			return times[n-1], nil
		}
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("%s is not scraped: %w", job, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// AlertsByJob returns the names of the pending and firing alerts of each job.
func (p Prometheus) AlertsByJob(ctx context.Context) (map[string][]string, error) {
	result, err := p.Alerts(ctx)
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
