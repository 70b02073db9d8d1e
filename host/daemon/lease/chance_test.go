package lease

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"causeway/remote"
)

// TestBookByChance holds a book step by step to a plain account of who may renew which lease until
// when.
func TestBookByChance(t *testing.T) {
	hosts := []string{"", "a", "b", "c"}
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		now := time.Now()
		b := &Book{Term: time.Minute, Now: func() time.Time { return now }}
		account := map[remote.LeaseID]*Entry{}
		var ids []remote.LeaseID // also of leases that are no more
		for step := range 400 {
			id, host := remote.LeaseID{}, hosts[rnd.IntN(len(hosts))]
			if len(ids) > 0 {
				id = ids[rnd.IntN(len(ids))]
			}
			e := account[id]
			holds := e != nil && now.Before(e.Until)
			var want, err error // what a host is told that names the lease
			switch {
			case e != nil && host != "" && host == e.Before:
				want = ErrMoved
			case !holds || host == "" || host != e.Host && host != e.Heir:
				want = ErrUnknown
			}
			switch did := rnd.IntN(8); did {
			case 0, 1:
				id, want = remote.NewLeaseID(), nil
				e = &Entry{ID: id, Host: hosts[1+rnd.IntN(3)], VGPU: fmt.Sprint("vm:", rnd.IntN(4)), Epoch: 5, Until: now.Add(b.Term)}
				ids, account[id] = append(ids, id), e
				err = b.Add(id, e.Host, e.VGPU, e.Epoch)
			case 2, 3:
				epoch, take := 3+rnd.Uint64N(5), rnd.IntN(2) == 0
				var got Entry
				var took bool
				got, took, err = b.Renew(id, host, epoch, take)
				moves := want == nil && host != e.Host && take
				switch {
				case want != nil:
				case host == e.Host && epoch < e.Epoch:
					want = ErrEpoch
				default:
					if e.Until = now.Add(b.Term); moves {
						e.Before, e.Host, e.Heir = e.Host, host, ""
					}
					if host == e.Host {
						e.Epoch = epoch
					}
					if got != *e {
						t.Fatalf("seed %d, step %d: renewed as %+v, not %+v", seed, step, got, *e)
					}
				}
				if took != moves {
					t.Fatalf("seed %d, step %d: taken over: %v", seed, step, took)
				}
			case 4:
				before := hosts[rnd.IntN(len(hosts))]
				if b.Allow(id, host, before); e != nil && e.Host != host {
					if e.Heir, e.Before = host, before; before == host {
						e.Before = ""
					}
				}
				want = nil
			case 5:
				var over bool
				if _, over, err = b.Leave(id, host); over != (want == nil && host == e.Host && e.Heir == "") {
					t.Fatalf("seed %d, step %d: over: %v", seed, step, over)
				}
				switch {
				case want != nil || over:
				case host == e.Host:
					e.Before, e.Host, e.Heir = e.Host, e.Heir, ""
				default:
					e.Heir = ""
				}
			case 6:
				vgpu := fmt.Sprint("vm:", rnd.IntN(4))
				b.Remove(vgpu)
				maps.DeleteFunc(account, func(_ remote.LeaseID, e *Entry) bool { return e.VGPU == vgpu })
				want = nil
			case 7:
				now = now.Add(time.Duration(rnd.Int64N(int64(b.Term) / 4)))
				want = nil
			}
			if !errors.Is(err, want) || want == nil && err != nil {
				t.Fatalf("seed %d, step %d: %v, not %v", seed, step, err, want)
			}
			sameBook(t, b, account, hosts)
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, step)
			}
		}
	}
}

// sameBook compares all that a book says.
func sameBook(t *testing.T, b *Book, account map[remote.LeaseID]*Entry, hosts []string) {
	t.Helper()
	of := func(which func(e *Entry) bool) map[remote.LeaseID]Entry {
		some := map[remote.LeaseID]Entry{}
		for id, e := range account {
			if which(e) {
				some[id] = *e
			}
		}
		return some
	}
	same := func(what string, got []Entry, want map[remote.LeaseID]Entry) {
		if !slices.IsSortedFunc(got, func(x, y Entry) int { return strings.Compare(x.VGPU, y.VGPU) }) {
			t.Errorf("%s are out of order", what)
		}
		have := map[remote.LeaseID]Entry{}
		for _, e := range got {
			have[e.ID] = e
		}
		if len(have) != len(got) || !maps.Equal(have, want) {
			t.Errorf("%s: %+v, not %+v", what, have, want)
		}
	}
	now := b.Now()
	same("overdue leases", b.Overdue(), of(func(e *Entry) bool { return !now.Before(e.Until) }))
	for _, h := range hosts {
		same("leases of "+h, b.Of(h), of(func(e *Entry) bool { return e.Host == h }))
	}
	for id, e := range account {
		if got, ok := b.Find(id); ok != now.Before(e.Until) || got != *e {
			t.Errorf("found %+v, %v, not %+v", got, ok, *e)
		}
	}
}
