// Package discover finds GPU servers by DNS SRV records (RFC 2782), _causeway._tcp.DOMAIN. A record
// names a server and its port and proves nothing: who connects knows a server by its certificate,
// which must be for the name in the record.
package discover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"causeway/host/api"
)

const (
	// Fresh is how long an answer holds.
	Fresh = 30 * time.Second
	// Most is how many servers a domain may have; further ones are left out.
	Most = 64
	// patience bounds one question.
	patience = 5 * time.Second
)

// Lookup is net.Resolver.LookupSRV.
type Lookup func(ctx context.Context, service, proto, name string) (cname string, records []*net.SRV, err error)

// Finder finds servers, and remembers for a while. Its methods are called from any goroutine.
type Finder struct {
	lookup Lookup
	now    func() time.Time

	mu     sync.Mutex
	domain string
	asked  time.Time
	found  []string
	err    error
}

// New asks lookup, nil for the host's resolver.
func New(lookup Lookup) *Finder {
	if lookup == nil {
		lookup = net.DefaultResolver.LookupSRV
	}
	return &Finder{lookup: lookup, now: time.Now}
}

// Servers are a domain's servers as HOST:PORT, by name. While DNS does not answer, those that it
// named last are returned beside the error; a domain that has no record has no server.
func (f *Finder) Servers(ctx context.Context, domain string) ([]string, error) {
	if domain == "" {
		return nil, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.domain != domain {
		f.domain, f.asked, f.found, f.err = domain, time.Time{}, nil, nil
	}
	if f.asked.IsZero() || f.now().Sub(f.asked) >= Fresh {
		f.ask(ctx)
	}
	return slices.Clone(f.found), f.err
}

func (f *Finder) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, records, err := f.lookup(ctx, "causeway", "tcp", f.domain)
	var no *net.DNSError
	if errors.As(err, &no) && no.IsNotFound {
		records, err = nil, nil
	}
	if err != nil && len(records) == 0 {
		f.err = fmt.Errorf("GPU servers of %s are not found: %w", f.domain, err)
		if ctx.Err() == nil { // who asks no longer is no reason to stop asking
			f.asked = f.now()
		}
		return
	}
	f.asked, f.found, f.err = f.now(), nil, nil
	for _, r := range records {
		if s, ok := server(r); ok && !slices.Contains(f.found, s) {
			f.found = append(f.found, s)
		}
	}
	slices.Sort(f.found)
	f.found = f.found[:min(len(f.found), Most)]
}

// server is what a record names, false if that is none. A target "." says that there is no such
// service.
func server(r *net.SRV) (string, bool) {
	s := net.JoinHostPort(strings.TrimSuffix(r.Target, "."), strconv.Itoa(int(r.Port)))
	return s, api.CheckServer(s) == nil
}
