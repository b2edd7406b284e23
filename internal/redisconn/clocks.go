package redisconn

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// maxSkew is how far the clock of a replica may be from that of its master. NTP keeps them within milliseconds.
const maxSkew = 500 * time.Millisecond

// checkClocks compares the clocks of the replicas of a master with its own. It skips replicas that cannot be reached.
func checkClocks(ctx context.Context, node redis.Cmdable, told settings) (found []Unsafe) {
	master, ok := node.(*redis.Client)
	if !ok {
		return nil
	}
	own, err := readClock(ctx, master)
	if err != nil {
		return nil // it does not tell
	}
	for i := 0; ; i++ {
		replica, known := told["slave"+strconv.Itoa(i)]
		if !known {
			return found
		}
		addr := replicaAddr(replica)
		clock, err := readReplicaClock(ctx, master.Options(), addr)
		if ahead := clock.offset - own.offset; err == nil && ahead.Abs()-clock.uncertainty-own.uncertainty > maxSkew {
			found = append(found, Unsafe{addr, "clock", formatSkew(ahead),
				"a failover to it ends leases and records early or late by that much"})
		}
	}
}

// replicaAddr returns the address in "ip=10.0.0.2,port=6379,state=online,offset=14,lag=1".
func replicaAddr(told string) string {
	ip, rest, _ := strings.Cut(strings.TrimPrefix(told, "ip="), ",port=")
	port, _, _ := strings.Cut(rest, ",")
	return net.JoinHostPort(ip, port)
}

func formatSkew(ahead time.Duration) string {
	if ahead < 0 {
		return fmt.Sprintf("%v behind its master's", -ahead.Round(time.Millisecond))
	}
	return fmt.Sprintf("%v ahead of its master's", ahead.Round(time.Millisecond))
}

// clock says how far that of a server is ahead of ours, give or take doubt: the server has looked at its clock somewhen
// between question and reply.
type clock struct{ offset, uncertainty time.Duration }

func readClock(ctx context.Context, node redis.Cmdable) (clock, error) {
	asked := time.Now()
	shown, err := node.Time(ctx).Result()
	half := time.Since(asked) / 2
	return clock{shown.Sub(asked.Add(half)), half}, err
}

// readReplicaClock asks the replica at addr, as the client with these options asks its master.
func readReplicaClock(ctx context.Context, o *redis.Options, addr string) (clock, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	dialer := o.Dialer
	if o.Addr == "FailoverClient" { // whose dialer knows one address only, that of the master
		dialer = nil
	}
	replica := redis.NewClient(&redis.Options{
		Addr: addr, Dialer: dialer, TLSConfig: o.TLSConfig, Protocol: o.Protocol,
		Username: o.Username, Password: o.Password,
		CredentialsProvider:          o.CredentialsProvider,
		CredentialsProviderContext:   o.CredentialsProviderContext,
		StreamingCredentialsProvider: o.StreamingCredentialsProvider,
		ContextTimeoutEnabled:        true, MaxRetries: -1, DialerRetries: 1,
	})
	defer replica.Close()
	return readClock(ctx, replica)
}
