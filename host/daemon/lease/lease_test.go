package lease

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/remote"
	"causeway/remote/mtls"
)

// TestBook: a lease holds for a term from its last renewal by its own host's newest causewayd, and
// the book is bounded.
func TestBook(t *testing.T) {
	now := time.Now()
	b := &Book{Term: time.Minute, Now: func() time.Time { return now }}
	id := remote.NewLeaseID()
	if err := b.Add(id, "a", "a/vm:gpu0", 3); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Minute - 1)
	if e, ok := b.Find(id); !ok || e.VGPU != "a/vm:gpu0" || len(b.Overdue()) != 0 {
		t.Error("it is over too early")
	}
	for _, c := range []struct {
		id    remote.LeaseID
		host  string
		epoch uint64
		want  error
	}{{id, "b", 9, ErrUnknown}, {remote.NewLeaseID(), "a", 9, ErrUnknown}, {id, "a", 2, ErrEpoch}, {id, "a", 4, nil}, {id, "a", 3, ErrEpoch}, {id, "a", 4, nil}} {
		if _, _, err := b.Renew(c.id, c.host, c.epoch, false); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	now = now.Add(time.Minute)
	if _, ok := b.Find(id); ok || len(b.Overdue()) != 1 {
		t.Error("it is not over")
	}
	if _, _, err := b.Renew(id, "a", 9, false); !errors.Is(err, ErrUnknown) {
		t.Errorf("one that is over was renewed: %v", err)
	}
	b.Remove("a/vm:gpu0")
	if len(b.byID) != 0 {
		t.Error("it is still there")
	}
	n := 0
	for h := 0; ; h++ {
		host := fmt.Sprint("h", h)
		var err error
		of := 0
		for ; err == nil; of++ {
			err = b.Add(remote.NewLeaseID(), host, fmt.Sprint(host, "/", of), 0)
		}
		n += of - 1
		if !errors.Is(err, ErrMost) || of-1 > MostPerHost || len(b.Of(host)) != of-1 {
			t.Fatalf("%d of one host, %v", of, err)
		}
		if of == 1 {
			break
		}
	}
	if n != MostLeases || len(b.byID) != n {
		t.Errorf("%d leases", n)
	}
}

func good() api.LeaseWish {
	return api.LeaseWish{VM: "vm1", Name: "gpu0", GPU: "any", Protocol: remote.ProtocolVersion, Key: mtls.KeyHash{1}}
}

func asJSON(v any) string { b, _ := json.Marshal(v); return string(b) }

// TestRequest: what a host may ask, and what it may not.
func TestRequest(t *testing.T) {
	change := func(f func(*api.LeaseWish)) string {
		w := good()
		f(&w)
		return asJSON(w)
	}
	r, err := DecodeRequest(strings.NewReader(asJSON(good())))
	if err != nil {
		t.Fatal(err)
	}
	if w := r.Wish(Host{"hosta"}); w.Key() != "hosta/vm1:gpu0" || w.Owner != "" || w.Remote != "" || w.Check() != nil {
		t.Errorf("%+v", w)
	}
	for name, b := range map[string]string{
		"nothing": "", "two": asJSON(good()) + "{}", "unknown": `{"vm":"a","memroy":1}`, "long": `{"vm":"` + strings.Repeat("a", MostMessage) + `"}`,
		"no key":     change(func(w *api.LeaseWish) { w.Key = mtls.KeyHash{} }),
		"protocol":   change(func(w *api.LeaseWish) { w.Protocol++ }),
		"a path":     change(func(w *api.LeaseWish) { w.VM = "../etc" }),
		"no name":    change(func(w *api.LeaseWish) { w.Name = "" }),
		"a terminal": change(func(w *api.LeaseWish) { w.GPU = "\x1b]0;" }),
		"a limit":    `{"vm":"a","name":"b","cap":900}`,
	} {
		if _, err := DecodeRequest(strings.NewReader(b)); !errors.Is(err, ErrMessage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHostOf(t *testing.T) {
	of := func(cn string, dns ...string) *x509.Certificate {
		return &x509.Certificate{Subject: pkix.Name{CommonName: cn}, DNSNames: dns}
	}
	for name, c := range map[string]struct {
		cert *x509.Certificate
		want string
	}{
		"common name": {of("hosta", "x"), "hosta"}, "DNS name": {of("", "hosta.example.net"), "hosta.example.net"},
		"the other": {of("CN of/some kind", "hosta"), "hosta"}, "none": {of(""), ""}, "a path": {of(".."), ""}, "a wildcard": {of("", "*.example.net"), ""},
	} {
		if h, err := HostOf(c.cert); h.String() != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", name, h, err)
		}
	}
}

// TestGrant: what a server may answer, and what it may not.
func TestGrant(t *testing.T) {
	ok := api.Lease{ID: remote.NewLeaseID(), Key: mtls.KeyHash{1}, GPU: api.GPU{ID: "GPU-1", Name: "H200", Memory: 1 << 37}, Limits: api.Limits{Share: 100}, Term: time.Minute}
	if g, err := DecodeGrant(strings.NewReader(asJSON(ok))); err != nil || g.Lease().ID != ok.ID {
		t.Fatal(err)
	}
	for name, f := range map[string]func(*api.Lease){
		"no name": func(l *api.Lease) { l.ID = remote.LeaseID{} }, "no key": func(l *api.Lease) { l.Key = mtls.KeyHash{} }, "no term": func(l *api.Lease) { l.Term = 0 },
		"a term": func(l *api.Lease) { l.Term = 1 << 62 }, "a name": func(l *api.Lease) { l.GPU.Name = "a\nb" }, "memory": func(l *api.Lease) { l.GPU.Memory = 1 << 60 },
		"a limit": func(l *api.Lease) { l.Limits.Cap = 101 }, "a profile": func(l *api.Lease) { l.Profile = "a b" },
	} {
		l := ok
		f(&l)
		if _, err := DecodeGrant(strings.NewReader(asJSON(l))); !errors.Is(err, ErrMessage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	many := api.Offer{GPUs: make([]api.GPU, mostGPUs+1)}
	if _, err := DecodeOffer(strings.NewReader(asJSON(many))); !errors.Is(err, ErrMessage) {
		t.Errorf("%v", err)
	}
	if _, err := DecodeState(strings.NewReader(`{"sessions":-1}`)); !errors.Is(err, ErrMessage) {
		t.Errorf("%v", err)
	}
}

// FuzzMessage: whatever another host says, what is taken is within its bounds, and means the same
// when it is said again.
func FuzzMessage(f *testing.F) {
	f.Add(byte(0), []byte(asJSON(good())))
	f.Add(byte(1), []byte(asJSON(api.Lease{ID: remote.NewLeaseID(), Key: mtls.KeyHash{1}, GPU: api.GPU{ID: "GPU-1", Name: "H200"}, Term: time.Minute})))
	f.Add(byte(2), []byte(`{"version":"1","protocol":1,"gpus":[{"id":"GPU-1","name":"H200","memory":1}]}`))
	f.Add(byte(3), []byte(`{"limits":{"memory":1048576},"memory":1,"sessions":2}`))
	f.Add(byte(4), []byte(`{"epoch":18446744073709551615}`))
	f.Add(byte(5), []byte(`{"memory":"1GiB","cap":"10%"}`))
	f.Add(byte(6), []byte(`{"memory":1073741824,"share":100}`))
	f.Add(byte(7), []byte(`{"host":"hostb"}`))
	f.Add(byte(8), []byte(`{"host":"hostb"}`))
	f.Add(byte(9), []byte(asJSON(inheritance(f))))
	f.Add(byte(10), []byte(`{"vm":"claim-1","name":"gpu0","id":"s","of":"team/c","host":"hosta","gpu":"GPU-1","memory":1048576,"share":100}`))
	f.Add(byte(10), []byte(`{"vm":"claim-1","name":"gpu0","id":"s","of":"team/c","host":"hosta","heir":"hostb","moved":3,"gpu":"GPU-1","memory":1048576,"share":100}`))
	f.Add(byte(11), []byte(`{"epoch":3,"gpus":[{"id":"GPU-1","name":"H200","memory":2,"claimable":1}],"reserved":[{"vm":"claim-1","name":"gpu0","id":"s","of":"team/c","host":"hosta","gpu":"GPU-1","memory":1048576,"share":100,"leased":true}]}`))
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		r := bytes.NewReader(b)
		switch kind % 12 {
		case 10:
			if v, err := DecodeReservation(r); err == nil && (v.Check() != nil || strings.ContainsAny(v.Lease()[len(v.Host)+1:], "/\x00\n")) {
				t.Errorf("%+v", v)
			}
		case 11:
			if s, err := DecodeFleet(r); err == nil && (len(s.GPUs) > mostGPUs || s.Epoch > MostEpoch || len(s.GPUs) > 0 && s.GPUs[0].Claimable > s.GPUs[0].Memory) {
				t.Errorf("%+v", s)
			}
		case 0:
			if q, err := DecodeRequest(r); err == nil {
				w := q.Wish(Host{"hosta"})
				if again, err := DecodeRequest(strings.NewReader(asJSON(q.wish))); err != nil || asJSON(again.wish) != asJSON(q.wish) {
					t.Errorf("%v", err)
				}
				if strings.ContainsAny(w.VM+w.Name, "/\x00\n") || !text(w.GPU) || !text(w.MIG) {
					t.Errorf("%+v", w)
				}
			}
		case 1:
			if g, err := DecodeGrant(r); err == nil && (g.lease.ID.IsZero() || g.lease.Term > mostTerm || !text(g.lease.GPU.Name)) {
				t.Errorf("%+v", g)
			}
		case 2:
			if o, err := DecodeOffer(r); err == nil && len(o.GPUs) > mostGPUs {
				t.Errorf("%+v", o)
			}
		case 3:
			if s, err := DecodeState(r); err == nil && (s.Sessions < 0 || !text(s.Why)) {
				t.Errorf("%+v", s)
			}
		case 4:
			_, _ = DecodeRenewal(r)
		case 7:
			if h, err := DecodeHeir(r); err == nil && h.Host != "" && !api.IsName(h.Host) {
				t.Errorf("%+v", h)
			}
		case 8:
			if h, err := DecodeHostName(r); err == nil && !api.IsName(h.Host) {
				t.Errorf("%+v", h)
			}
		case 9:
			if i, err := DecodeInheritance(r); err == nil && (i.Lease.ID.IsZero() || i.Lease.Upstream == nil || i.Wish.Check() != nil) {
				t.Errorf("%+v", i)
			}
		case 5:
			if c, err := DecodeChange(r); err == nil && c.Check() != nil {
				t.Errorf("%+v", c)
			}
		case 6:
			if l, err := DecodeLimits(r); err == nil && l.Check() != nil {
				t.Errorf("%+v", l)
			}
		}
	})
}

// TestFile: what is written is read again, by its user alone, and what others could have read or
// written is refused.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "gpu0.lease")
	keys, err := mtls.NewPinned()
	if err != nil {
		t.Fatal(err)
	}
	f := &File{ID: remote.NewLeaseID(), Identity: keys, Epoch: 7, Host: "hosta", Addresses: []string{"[::1]:7745"}}
	for range 2 {
		if err := f.Write(name); err != nil {
			t.Fatal(err)
		}
	}
	if again, err := Read(name); err != nil || asJSON(again) != asJSON(f) {
		t.Errorf("%+v, %v", again, err)
	}
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	bad := map[string]func(string) error{
		"others read it": func(n string) error { return os.Chmod(n, 0o640) },
		"a link":         func(n string) error { return os.Symlink(name, n) },
		"nothing":        func(string) error { return nil },
		"a folder":       func(n string) error { return os.Mkdir(n, 0o700) },
		"no JSON":        func(n string) error { return os.WriteFile(n, []byte("{"), 0o600) },
		"a path":         func(n string) error { return os.WriteFile(n, []byte(`{"host":"../x"}`), 0o600) },
		"a key":          func(n string) error { return os.WriteFile(n, []byte(`{"id":"12"}`), 0o600) },
		"long":           func(n string) error { return os.WriteFile(n, bytes.Repeat([]byte(" "), mostFile+1), 0o600) },
	}
	for what, do := range bad {
		n := filepath.Join(dir, "x")
		if what == "others read it" {
			if err := f.Write(n); err != nil {
				t.Fatal(err)
			}
		}
		if err := do(n); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(n); err == nil {
			t.Errorf("%s: it is read", what)
		}
		_ = os.Remove(n)
	}
}

// inheritance is a good one.
func inheritance(t testing.TB) Inheritance {
	t.Helper()
	keys, err := mtls.NewPinned()
	if err != nil {
		t.Fatal(err)
	}
	keys.Peer = mtls.KeyHash{1}
	id := remote.NewLeaseID()
	return Inheritance{
		Wish:  api.Wish{VM: "vm1", Name: "gpu0", Remote: "gpu1"},
		Lease: File{ID: id, Identity: keys, Epoch: 3, Upstream: &api.Upstream{Server: "gpu1", Address: "gpu1:7745", Lease: id, GPU: "H200"}},
	}
}

// TestInheritance: what a host tells another of a lease, and what it may not.
func TestInheritance(t *testing.T) {
	want := inheritance(t)
	if i, err := DecodeInheritance(strings.NewReader(asJSON(want))); err != nil || asJSON(i) != asJSON(want) {
		t.Errorf("%+v, %v", i, err)
	}
	for name, spoil := range map[string]func(*Inheritance){
		"no lease":      func(i *Inheritance) { i.Lease.ID = remote.LeaseID{} },
		"another lease": func(i *Inheritance) { i.Lease.Upstream.Lease = remote.NewLeaseID() },
		"no server":     func(i *Inheritance) { i.Lease.Upstream = nil },
		"no key":        func(i *Inheritance) { i.Lease.Identity.Key = nil },
		"a terminal":    func(i *Inheritance) { i.Lease.Upstream.Server = "\x1b]0;" },
		"a path":        func(i *Inheritance) { i.Wish.VM = "../etc" },
	} {
		i := inheritance(t)
		spoil(&i)
		if _, err := DecodeInheritance(strings.NewReader(asJSON(i))); !errors.Is(err, ErrMessage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHeir: a lease passes to its heir when that takes it, or when who has it leaves it; who had it
// renews it no more, unless it is given back.
func TestHeir(t *testing.T) {
	now := time.Now()
	b := &Book{Term: time.Minute, Now: func() time.Time { return now }}
	id := remote.NewLeaseID()
	renews := func(host string, take bool, want error) (took bool) {
		t.Helper()
		_, took, err := b.Renew(id, host, 5, take)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, not %v", host, err, want)
		}
		return took
	}
	leaves := func(host string, over bool, want error) {
		t.Helper()
		if _, did, err := b.Leave(id, host); did != over || !errors.Is(err, want) {
			t.Errorf("%s leaves: %v, %v", host, did, err)
		}
	}
	if err := b.Add(id, "a", "a/vm1:gpu0", 5); err != nil {
		t.Fatal(err)
	}
	renews("b", true, ErrUnknown)
	b.Allow(id, "b", "")
	renews("a", true, nil)
	renews("b", false, nil)
	leaves("b", false, nil) // it did not come
	renews("b", true, ErrUnknown)
	b.Allow(id, "b", "")
	if !renews("b", true, nil) || renews("b", true, nil) {
		t.Error("it is taken once")
	}
	renews("a", false, ErrMoved)
	leaves("a", false, ErrMoved)
	b.Allow(id, "a", "") // and back
	renews("a", false, nil)
	leaves("b", false, nil)
	renews("a", false, nil)
	renews("b", false, ErrMoved)
	b.Allow(id, "b", "b") // as a server says that has read it in a file
	renews("b", false, nil)
	b.Allow(id, "", "b") // which moved to a from b, and to nobody since
	renews("b", false, ErrMoved)
	b.Allow(id, "a", "b") // nobody is its own heir
	leaves("a", true, nil)
	now = now.Add(time.Minute)
	renews("a", true, ErrUnknown)
}

// TestDenied: a lease that somebody at the server ended is not one that the server does not know,
// until so many others were.
func TestDenied(t *testing.T) {
	b := &Book{Term: time.Hour, Now: time.Now}
	first := remote.NewLeaseID()
	for i := range MostLeases + 1 {
		id := first
		if i > 0 {
			id = remote.NewLeaseID()
		}
		if err := b.Add(id, "hosta", "vgpu", 0); err != nil {
			t.Fatal(err)
		}
		b.Deny("another")
		if _, _, err := b.Renew(id, "hosta", 1, false); err != nil {
			t.Fatal(err)
		}
		b.Deny("vgpu")
		b.Remove("vgpu")
		want := ErrEnded
		if i == MostLeases {
			want = ErrUnknown
		}
		if _, _, err := b.Renew(first, "hosta", 1, false); !errors.Is(err, want) {
			t.Fatalf("after %d others: %v, not %v", i, err, want)
		}
	}
}
