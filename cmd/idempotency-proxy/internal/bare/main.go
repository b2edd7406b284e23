// Bare is the least that a reverse proxy costs: httputil.ReverseProxy alone, with the transport and the pool of buffers
// of idempotency-proxy. The cost of idempotency-proxy is measured beside it.
//
//	bare URL
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

func main() {
	upstream, err := url.Parse(os.Args[1])
	check(err)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(upstream)
			r.SetXForwarded()
		},
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			IdleConnTimeout:     time.Second,
			MaxIdleConnsPerHost: 256,
			DisableCompression:  true,
		},
		BufferPool: new(buffers),
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	fmt.Println("http://" + listener.Addr().String())
	go func() { check(http.Serve(listener, proxy)) }()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
}

// buffers saves what ReverseProxy allocates by default, 32 KiB for each answer.
type buffers struct{ pool sync.Pool }

func (p *buffers) Get() []byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 32<<10)
}

func (p *buffers) Put(b []byte) { p.pool.Put(&b) }

func check(err error) {
	if err != nil {
		log.Fatal("bare: ", err)
	}
}
