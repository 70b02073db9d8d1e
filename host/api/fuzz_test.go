package api

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"causeway/host/limit"
)

// strict reads a value as causewayd reads a request's body.
func strict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// FuzzWish: a wish that is right has its files in its VM's folder, says the same when it is written
// and read again, and makes of right limits right ones, the same whether it is granted once or
// twice.
func FuzzWish(f *testing.F) {
	for _, s := range []string{
		`{"vm":"vm1","name":"gpu0","memory":"16GiB","share":300,"cap":"25%","sessions":4}`, `{"vm":"vm1","name":"gpu0","gpu":"0,1","numa":1}`,
		`{"vm":"vm1","name":"gpu0","memory":"none","cap":"none"}`, `{"vm":"vm1","name":"gpu0","profile":"quarter","owner":"qemu:kvm"}`,
		`{"vm":"claim-1","name":"gpu0","programs":true}`, `{"vm":"vm1","name":"gpu0","mig":"1g.18gb","remote":"a:1","user_sessions":3,"host_memory":"2GiB"}`,
		`{"vm":"vm1","name":"gpu0","memory":1048576,"cap":0}`, `{"vm":"..","name":"gpu0"}`, `{"vm":"vm1","name":"gpu0","memory":18446744073709551615,"share":10000}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var w Wish
		if strict(b, &w) != nil || w.Check() != nil {
			return
		}
		const run = "/run/causeway"
		folder := (&Spec{VM: w.VM, Name: w.Name}).SocketPath(run)
		if w.Programs != nil && *w.Programs {
			folder = strings.TrimSuffix(w.SocketPath(run), "/"+w.Name+".d/programs/session") + "/x"
		}
		if p := w.SocketPath(run); filepath.Clean(p) != p || filepath.Dir(filepath.Dir(folder)) != run || filepath.Base(filepath.Dir(folder)) != w.VM || strings.ContainsAny(p, "\x00\n ") {
			t.Errorf("its socket is %q", p)
		}
		text, err := json.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		var again Wish
		if err := strict(text, &again); err != nil || again.Check() != nil {
			t.Fatalf("%s is read as %v, %v", text, err, again.Check())
		}
		if second, _ := json.Marshal(again); !bytes.Equal(text, second) {
			t.Errorf("%s became %s", text, second)
		}
		for _, l := range []Limits{{}, {Memory: limit.LeastMemory, Share: 1, Sessions: 1}, {Memory: 1 << 40, Share: limit.MostShare, Cap: limit.MostCap, Sessions: limit.MostSessions}} {
			once := w.On(l)
			if err := once.Check(); err != nil {
				t.Errorf("%s on %+v gives %+v: %v", text, l, once, err)
			}
			if w.On(once) != once {
				t.Errorf("%s granted twice is %+v, once %+v", text, w.On(once), once)
			}
			whole := w.Over(l)
			if got := whole.On(Limits{}); got != once {
				t.Errorf("%s named as a whole is %+v, not %+v", text, got, once)
			}
			if all := once.All(); all.On(l) != all.On(Limits{}) && all.HostMemory != nil && all.Sessions != nil && all.Share != nil {
				t.Errorf("all of %+v is %+v of %+v", once, all.On(l), l)
			}
		}
		for _, word := range w.Words() { // as flags and a domain's XML say it
			var c Change
			field := strings.ReplaceAll(word.Name, "-", "_")
			text, _ := json.Marshal(map[string]string{field: word.Text})
			if err := strict(text, &c); err != nil || c.Check() != nil {
				t.Errorf("%s: %v, %v", text, err, c.Check())
			}
		}
	})
}
