package discover

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"time"
)

// zone is a resolver of tests.
type zone struct {
	records []*net.SRV
	err     error
	asked   int
}

func (z *zone) lookup(_ context.Context, service, proto, name string) (string, []*net.SRV, error) {
	z.asked++
	if service != "causeway" || proto != "tcp" || name != "example.net" {
		return "", nil, errors.New("asked for something else")
	}
	return "", z.records, z.err
}

func TestServers(t *testing.T) {
	z := &zone{records: []*net.SRV{{Target: "gpu2.example.net.", Port: 7745}, {Target: "gpu1.example.net.", Port: 7000}, {Target: "gpu1.example.net.", Port: 7000, Priority: 1},
		{Target: "."}, {Target: "gpu3.example.net.", Port: 0}, {Target: "two words.", Port: 1}, {Target: "-x.", Port: 1}}}
	f := New(z.lookup)
	now := time.Unix(1, 0)
	f.now = func() time.Time { return now }
	want := []string{"gpu1.example.net:7000", "gpu2.example.net:7745"}
	is := func(what string, want []string, fails bool, asked int) {
		t.Helper()
		got, err := f.Servers(t.Context(), "example.net")
		if !slices.Equal(got, want) || (err != nil) != fails || z.asked != asked {
			t.Errorf("%s: %v, %v, asked %d times; want %v, an error: %v, asked %d times", what, got, err, z.asked, want, fails, asked)
		}
	}
	is("first", want, false, 1)
	is("remembered", want, false, 1)
	now = now.Add(Fresh)
	z.err, z.records = errors.New("no answer"), nil
	is("no answer", want, true, 2)
	is("no answer, remembered", want, true, 2)
	now = now.Add(Fresh)
	z.err = &net.DNSError{IsNotFound: true}
	is("no record", nil, false, 3)
	if got, err := f.Servers(t.Context(), ""); got != nil || err != nil || z.asked != 3 {
		t.Errorf("no domain: %v, %v", got, err)
	}
	if _, err := f.Servers(t.Context(), "example.org"); err == nil || z.asked != 4 {
		t.Errorf("another domain is not asked for")
	}
}

func TestMost(t *testing.T) {
	z := &zone{}
	for port := range uint16(2 * Most) {
		z.records = append(z.records, &net.SRV{Target: "gpu1.example.net.", Port: 1 + port})
	}
	if got, err := New(z.lookup).Servers(t.Context(), "example.net"); len(got) != Most || err != nil {
		t.Errorf("%d servers, %v; want %d", len(got), err, Most)
	}
}

// TestGivenUp: a question that nobody waits for any more is asked again.
func TestGivenUp(t *testing.T) {
	z := &zone{err: context.Canceled}
	f := New(z.lookup)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for asked := 1; asked < 3; asked++ {
		if _, err := f.Servers(ctx, "example.net"); err == nil || z.asked != asked {
			t.Errorf("%v, asked %d times", err, z.asked)
		}
	}
}
