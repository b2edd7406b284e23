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

// Series is what was measured of one thing, at even distances.
type Series struct {
	Name   string
	Slack  float64 // by how much it may grow, apart from a tenth
	Values []float64
}

// Ends returns the medians of its second third and of its last one. The first third is left out: until records expire,
// everything grows.
func (s Series) Ends() (middle, end float64) {
	third := len(s.Values) / 3
	return median(s.Values[third : 2*third]), median(s.Values[2*third:])
}

// Grows reports whether the last third is larger than the second, by more than a tenth and its slack. Medians do not see
// the moments at which a server is down.
func (s Series) Grows() bool {
	middle, end := s.Ends()
	return end > 1.1*middle+s.Slack
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// gauge reads one value.
type gauge struct {
	Series
	read func(context.Context) (float64, error)
}

// measure samples all gauges until ctx ends. What a server does not tell now is left out.
func (r *run) measure(ctx context.Context) (series []Series, err error) {
	gauges := r.gauges()
	step := max(time.Second, r.For/600)
	for pause(ctx, step) {
		debug.FreeOSMemory() // collects garbage before
		for i := range gauges {
			asked, cancel := context.WithTimeout(ctx, time.Second)
			if value, err := gauges[i].read(asked); err == nil {
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

func (r *run) gauges() []gauge {
	gauges := []gauge{
		{Series{"MiB of heap after a collection", 2, nil}, func(context.Context) (float64, error) {
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			return float64(stats.HeapAlloc) / (1 << 20), nil
		}},
		{Series{"MiB of the process", 8, nil}, residentMemory},
		{Series{"goroutines", 20, nil}, func(context.Context) (float64, error) {
			return float64(runtime.NumGoroutine()), nil
		}},
		{Series{"connections to Redis", 4, nil}, r.redisInfo("clients", "connected_clients", 1)},
		{Series{"keys in Redis", 20, nil}, func(ctx context.Context) (float64, error) {
			n, err := r.client.DBSize(ctx).Result()
			return float64(n), err
		}},
		{Series{"MiB of Redis", 2, nil}, r.redisInfo("memory", "used_memory", 1<<20)},
		{Series{"sessions of PostgreSQL", 8, nil},
			r.query("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")},
	}
	for _, table := range []string{"plain", "of_rows"} { // a divided one drops its rows after a day, all at once
		gauges = append(gauges, gauge{Series{"rows past their time, " + table, 50, nil}, r.query(pastTime(table))})
	}
	return gauges
}

// pastTime counts the rows that should be gone: a janitor deletes them a minute after they have expired. All rows together
// would rise and fall with each of its turns, and with the speed of the machine.
func pastTime(table string) string {
	return fmt.Sprintf("SELECT count(*) FROM %s WHERE expires_at NOT BETWEEN now() - interval '%d s' AND now() + interval '%d s'",
		table, (time.Minute+4*ttl)/time.Second, 2*ttl/time.Second)
}

func (r *run) query(sql string) func(context.Context) (float64, error) {
	return func(ctx context.Context) (value float64, err error) {
		err = r.pool.QueryRow(ctx, sql).Scan(&value)
		return value, err
	}
}

func (r *run) redisInfo(section, name string, unit float64) func(context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) {
		info, err := r.client.Info(ctx, section).Result()
		if err != nil {
			return 0, err
		}
		_, rest, _ := strings.Cut(info, name+":")
		number, _, _ := strings.Cut(rest, "\r\n")
		value, err := strconv.ParseFloat(number, 64)
		return value / unit, err
	}
}

// residentMemory returns what the system counts as memory of this process; only Linux tells.
func residentMemory(context.Context) (float64, error) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, nil //nolint:nilerr // another system
	}
	pages, err := strconv.ParseFloat(strings.Fields(string(text))[1], 64)
	return pages * float64(os.Getpagesize()) / (1 << 20), err
}
