package soak

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Series has the values of one gauge, sampled at even intervals.
type Series struct {
	Name   string
	Slack  float64 // the growth that Grows allows in addition to a tenth
	Values []float64
}

// Ends returns the median of the second third of the values, and the median of the last third. Ends ignores the first third,
// because every gauge grows until the first records expire.
func (s Series) Ends() (middle, end float64) {
	third := len(s.Values) / 3
	return computeMedian(s.Values[third : 2*third]), computeMedian(s.Values[2*third:])
}

// Grows reports whether the median of the last third exceeds the median of the second third by more than a tenth and Slack.
// Grows compares medians because they hide the moments at which a server is down.
func (s Series) Grows() bool {
	middle, end := s.Ends()
	return end > 1.1*middle+s.Slack
}

func computeMedian(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// gauge samples one value.
type gauge struct {
	Series
	readValue func(context.Context) (float64, error)
}

// sampleGauges samples all gauges until ctx ends. If a gauge fails, for example because a server is down, the series lacks
// this value. If a series has fewer than three values at the end, sampleGauges returns an error.
func (r *run) sampleGauges(ctx context.Context) (series []Series, err error) {
	gauges := r.newGauges()
	step := max(time.Second, r.For/600)
	for sleepUnlessDone(ctx, step) {
		debug.FreeOSMemory() // also collects garbage
		for i := range gauges {
			asked, cancel := context.WithTimeout(ctx, time.Second)
			if value, err := gauges[i].readValue(asked); err == nil {
				gauges[i].Values = append(gauges[i].Values, value)
			}
			cancel()
		}
	}
	for _, g := range gauges {
		if len(g.Values) < 3 {
			err = cmp.Or(err, fmt.Errorf("soak: %s: only %d values", g.Name, len(g.Values)))
		}
		series = append(series, g.Series)
	}
	return series, err
}

func (r *run) newGauges() []gauge {
	gauges := []gauge{
		{Series{"MiB of heap after a collection", 2, nil}, func(context.Context) (float64, error) {
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			return float64(stats.HeapAlloc) / (1 << 20), nil
		}},
		{Series{"MiB of the process", 8, nil}, readResidentMemory},
		{Series{"goroutines", 20, nil}, func(context.Context) (float64, error) {
			return float64(runtime.NumGoroutine()), nil
		}},
		{Series{"connections to Redis", 4, nil}, r.readFromRedis("clients", "connected_clients", 1)},
		{Series{"keys in Redis", 20, nil}, func(ctx context.Context) (float64, error) {
			n, err := r.redisClient.DBSize(ctx).Result()
			return float64(n), err
		}},
		{Series{"MiB of Redis", 2, nil}, r.readFromRedis("memory", "used_memory", 1<<20)},
		{Series{"sessions of PostgreSQL", 8, nil},
			r.readFromPostgres("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")},
	}
	for _, table := range []string{"plain", "of_rows"} { // the divided table drops all rows of a day at once, a day later
		gauges = append(gauges, gauge{Series{"rows past their time, " + table, 50, nil}, r.readFromPostgres(buildOverdueQuery(table))})
	}
	return gauges
}

// buildOverdueQuery returns the query that counts the rows of table that the janitor should have deleted, because the janitor
// deletes rows a minute after they have expired. The number of all rows is no gauge, because that number rises and falls with
// each turn of the janitor, and with the speed of the machine.
func buildOverdueQuery(table string) string {
	return fmt.Sprintf("SELECT count(*) FROM %s WHERE expires_at NOT BETWEEN now() - interval '%d s' AND now() + interval '%d s'",
		table, (time.Minute+4*ttl)/time.Second, 2*ttl/time.Second)
}

// readFromPostgres returns the function of a gauge that runs a query.
func (r *run) readFromPostgres(sql string) func(context.Context) (float64, error) {
	return func(ctx context.Context) (value float64, err error) {
		err = r.postgresPool.QueryRow(ctx, sql).Scan(&value)
		return value, err
	}
}

// readFromRedis returns the function of a gauge that reads a field of the INFO command, in multiples of unit.
func (r *run) readFromRedis(section, name string, unit float64) func(context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) {
		info, err := r.redisClient.Info(ctx, section).Result()
		if err != nil {
			return 0, err
		}
		_, rest, _ := strings.Cut(info, name+":")
		number, _, _ := strings.Cut(rest, "\r\n")
		value, err := strconv.ParseFloat(number, 64)
		return value / unit, err
	}
}

// readResidentMemory returns the resident memory of this process on Linux, and 0 on other systems.
func readResidentMemory(context.Context) (float64, error) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, nil //nolint:nilerr // another system
	}
	pages, err := strconv.ParseFloat(strings.Fields(string(text))[1], 64)
	return pages * float64(os.Getpagesize()) / (1 << 20), err
}
