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

// maxSkew is the accepted difference between the clocks of a replica and its master. NTP keeps the clocks within
// milliseconds.
const maxSkew = 500 * time.Millisecond

// checkClocks compares the clocks of the replicas of node with the clock of node. Replicas that cannot be reached are
// skipped.
func checkClocks(ctx context.Context, node redis.Cmdable, reported settings) (found []Unsafe) {
	master, ok := node.(*redis.Client)
	if !ok {
		return nil
	}
	masterClock, err := readClock(ctx, master)
	if err != nil {
		return nil // the master refuses TIME
	}
	for i := 0; ; i++ {
		replica, known := reported["slave"+strconv.Itoa(i)]
		if !known {
			return found
		}
		addr := replicaAddr(replica)
		replicaClock, err := readReplicaClock(ctx, master.Options(), addr)
		skew, doubt := replicaClock.offset-masterClock.offset, replicaClock.uncertainty+masterClock.uncertainty
		if err == nil && skew.Abs()-doubt > maxSkew {
			found = append(found, Unsafe{addr, "clock", formatSkew(skew),
				"after a failover to this replica, leases and records end early or late by this difference"})
		}
	}
}

// replicaAddr returns the address in the line of a replica in INFO, such as
// "ip=10.0.0.2,port=6379,state=online,offset=14,lag=1".
func replicaAddr(line string) string {
	ip, rest, _ := strings.Cut(strings.TrimPrefix(line, "ip="), ",port=")
	port, _, _ := strings.Cut(rest, ",")
	return net.JoinHostPort(ip, port)
}

func formatSkew(ahead time.Duration) string {
	if ahead < 0 {
		return fmt.Sprintf("%v behind its master's", -ahead.Round(time.Millisecond))
	}
	return fmt.Sprintf("%v ahead of its master's", ahead.Round(time.Millisecond))
}

// clock is the offset of a server's clock from the clock of this process. The server reads its clock between the
// question and the reply, so the offset may be wrong by up to uncertainty.
type clock struct{ offset, uncertainty time.Duration }

func readClock(ctx context.Context, node redis.Cmdable) (clock, error) {
	sentAt := time.Now()
	serverTime, err := node.Time(ctx).Result()
	halfRoundTrip := time.Since(sentAt) / 2
	return clock{serverTime.Sub(sentAt.Add(halfRoundTrip)), halfRoundTrip}, err
}

// readReplicaClock asks the replica at addr for its clock. The connection uses the options o of the client of the
// master.
func readReplicaClock(ctx context.Context, o *redis.Options, addr string) (clock, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	dialer := o.Dialer
	if o.Addr == "FailoverClient" { // the dialer of a FailoverClient always dials the master
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
