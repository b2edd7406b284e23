package main

import (
	"context"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// cluster is what first executions cost the masters of a Redis Cluster. All of them share the processors of this machine,
// so their rate says nothing: what counts is the time that the busiest master takes for each request of the whole cluster.
type cluster struct {
	masters int
	busiest time.Duration
	all     time.Duration
}

const clusterRequests = 100_000

func overMasters() (all []cluster, err error) {
	for _, masters := range []int{1, 3, 6} {
		c, err := spread(masters)
		if err != nil {
			return nil, err
		}
		log.Printf("%d masters: %v of the busiest one for a request, %v of all", c.masters, c.busiest, c.all)
		all = append(all, c)
	}
	return all, nil
}

func spread(masters int) (cluster, error) {
	servers, err := servertest.StartRedisCluster(masters)
	if err != nil {
		return cluster{}, err
	}
	var addresses []string
	for _, server := range servers {
		defer server.Close()
		addresses = append(addresses, server.Addr())
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addresses, Password: servertest.RedisPassword(), ContextTimeoutEnabled: true,
	})
	defer client.Close()
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	before, err := processorTimes(servers)
	if err != nil {
		return cluster{}, err
	}
	if err := executeAll(store, clusterRequests); err != nil {
		return cluster{}, err
	}
	after, err := processorTimes(servers)
	if err != nil {
		return cluster{}, err
	}
	c := cluster{masters: masters}
	for i := range servers {
		each := (after[i] - before[i]) / clusterRequests
		c.busiest = max(c.busiest, each)
		c.all += each
	}
	return c, nil
}

func processorTimes(servers []*servertest.Server) (times []time.Duration, err error) {
	for _, server := range servers {
		t, err := server.ProcessorTime()
		if err != nil {
			return nil, err
		}
		times = append(times, t)
	}
	return times, nil
}

// executeAll makes so many first executions, some at a time.
func executeAll(store idempotency.Store, requests int) error {
	const workers = 16
	failures := make(chan error)
	for range workers {
		go func() {
			var err error
			for i := 0; i < requests/workers && err == nil; i++ {
				err = execute(context.Background(), store, newKey())
			}
			failures <- err
		}()
	}
	var failed error
	for range workers {
		if err := <-failures; err != nil {
			failed = err
		}
	}
	return failed
}
