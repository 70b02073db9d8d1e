package limit

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestSize(t *testing.T) {
	for in, want := range map[string]uint64{
		"1B": 1, "512MiB": 512 << 20, "4G": 4 << 30, "4 gb": 4 << 30, "16GiB": 16 << 30, "2T": 2 << 40, " 1073741824B ": 1 << 30, "3K": 3072,
		"18446744073709551615B": math.MaxUint64,
	} {
		got, err := ParseSize(in)
		if err != nil || got != want {
			t.Errorf("%q: %d %v, want %d", in, got, err, want)
		}
		if back, err := ParseSize(FormatSize(got)); err != nil || back != got {
			t.Errorf("%d: written as %q, read as %d, %v", got, FormatSize(got), back, err)
		}
	}
	for in, words := range map[string]string{
		"": "512MiB", "0": "512MiB", "-1": "512MiB", "4XiB": "4GiB", "GiB": "4GiB", "1.5G": "512MiB", "18446744073709551616B": "no size",
		"17179869184G": "no size", "4G4": "no size", "0x10": "no size", "4": "write 4GiB, 4MiB, or 4B", "1073741824": "no unit", "4 4G": "no size",
	} {
		if n, err := ParseSize(in); !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), words) {
			t.Errorf("%q is %d, %v", in, n, err)
		}
	}
}

// word is a limit as text and JSON have it.
type word interface {
	UnmarshalText([]byte) error
	fmt.Stringer
}

func TestWords(t *testing.T) {
	var (
		memory   Memory
		share    Share
		limit    Cap
		sessions Sessions
		portion  Portion
		host     HostMemory
		user     UserSessions
	)
	for _, c := range []struct {
		to       word
		in, want string // an error's words behind an !
	}{
		{&memory, "16GiB", "16GiB"}, {&memory, "none", "none"}, {&memory, "4", "!4GiB"}, {&memory, "0", "!none for the whole GPU"}, {&memory, "", "!none"},
		{&memory, "4KiB", "!less than any program needs"}, {&memory, "lots", "!512MiB"}, {&memory, "0GiB", "!512MiB"},
		{&share, "300", "300"}, {&share, "0", "!1 to 10000"}, {&share, "none", "!1 to 10000"}, {&share, "10001", "!1 to 10000"}, {&share, "-3", "!1 to 10000"}, {&share, "", "!as in 100"},
		{&limit, "25", "25"}, {&limit, "25%", "25"}, {&limit, "25 %", "25"}, {&limit, "none", "none"}, {&limit, "0", "!none"}, {&limit, "101", "!1 to 100"}, {&limit, "", "!or none"}, {&limit, "0.5", "!per cent"},
		{&sessions, "8", "8"}, {&sessions, "0", "!1 to 1000"}, {&sessions, "none", "!1 to 1000"}, {&sessions, "1001", "!1 to 1000"}, {&sessions, "1e3", "!1 to 1000"},
		{&host, "16GiB", "16GiB"}, {&host, "64MiB", "64MiB"}, {&host, "1MiB", "!64 MiB or more"}, {&host, "none", "!512MiB"}, {&host, "4", "!4GiB"},
		{&user, "8", "8"}, {&user, "half", "half"}, {&user, "0", "!1 to 1000"}, {&user, "1001", "!1 to 1000"},
		{&portion, "1/4", "1/4"}, {&portion, "25%", "25/100"}, {&portion, "16GiB", "16GiB"}, {&portion, "none", "!1/4"}, {&portion, "2/1", "!25%"}, {&portion, "0/4", "!1/4"}, {&portion, "1/0", "!1/4"}, {&portion, "4", "!4GiB"},
	} {
		err := c.to.UnmarshalText([]byte(c.in))
		if words, bad := strings.CutPrefix(c.want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%T %q: %v, want %q in it", c.to, c.in, err, words)
			}
			continue
		}
		if err != nil || c.to.String() != c.want {
			t.Errorf("%T %q: %v, %v", c.to, c.in, c.to, err)
		}
	}
}

func TestJSON(t *testing.T) {
	type all struct {
		Memory   *Memory   `json:"memory,omitempty"`
		Share    *Share    `json:"share,omitempty"`
		Cap      *Cap      `json:"cap,omitempty"`
		Sessions *Sessions `json:"sessions,omitempty"`
	}
	for in, want := range map[string]string{
		`{}`: `{}`,
		`{"memory":1073741824,"share":300,"cap":25,"sessions":7}`:     `{"memory":1073741824,"share":300,"cap":25,"sessions":7}`,
		`{"memory":"16GiB","share":"300","cap":"25%","sessions":"7"}`: `{"memory":17179869184,"share":300,"cap":25,"sessions":7}`,
		`{"memory":"none","cap":"none"}`:                              `{"memory":0,"cap":0}`,
		`{"memory":0,"cap":0}`:                                        `{"memory":0,"cap":0}`,
		`{"memory":null}`:                                             `{}`,
		`{"memory":"4"}`:                                              "", `{"cap":-1}`: "", `{"share":1.5}`: "", `{"sessions":"many"}`: "", `{"memory":{}}`: "",
	} {
		var a all
		err := json.Unmarshal([]byte(in), &a)
		b, _ := json.Marshal(a)
		if want == "" && err == nil || want != "" && (err != nil || string(b) != want) {
			t.Errorf("%s: %s, %v", in, b, err)
		}
	}
}

func TestFits(t *testing.T) {
	h200 := GPU{Name: "H200", Memory: 143771 << 20, Waiting: 1}
	soft := GPU{Soft: true, Name: "soft", Memory: 12 << 30}
	for _, c := range []struct {
		g     GPU
		m     Memory
		n     int
		words string
	}{
		{h200, 0, 1, ""}, {h200, 16 << 30, 1, ""}, {h200, 64 << 20, 1, "640 MiB or more"}, {h200, 141 << 30, 1, "more than H200 has: 140.4 GiB"}, {h200, 141 << 30, 2, ""},
		{soft, 1 << 20, 1, ""}, {soft, 13 << 30, 1, "more than"}, {GPU{Name: "x"}, 1 << 50, 1, ""},
	} {
		err := c.g.Fits(c.m, c.n)
		if (err == nil) != (c.words == "") || err != nil && (!strings.Contains(err.Error(), c.words) || !errors.Is(err, ErrLimit)) {
			t.Errorf("%v on %s: %v", c.m, c.g.Name, err)
		}
	}
}

// TestProfiles: as many vGPUs of a profile fit on a GPU as its name says, with what the driver and
// waiting workers take.
func TestProfiles(t *testing.T) {
	for _, mib := range []uint64{143771, 81559, 46068, 24564} {
		for name, p := range Profiles() {
			if err := p.Check(); err != nil {
				t.Error(name, err)
			}
			g := GPU{Name: "g", Memory: mib << 20, Waiting: 1}
			size, err := p.Memory.On(g)
			if err != nil {
				t.Error(mib, name, err)
			}
			m, n := uint64(size), uint64(p.Memory.Of)
			const context, driver = 520 << 20, 500 << 20
			if all := n*(m+context) + driver; all > g.Memory {
				t.Errorf("%d MiB, %s: %d of %s take %s", mib, name, n, human(m), human(all))
			}
			if part := float64(m*n) / float64(g.Memory); part < 0.75 {
				t.Errorf("%d MiB, %s: only %.2f of the memory is given", mib, name, part)
			}
		}
	}
	half := Profiles()["half"].Memory
	if m, err := half.On(GPU{Soft: true, Memory: 12 << 30, Waiting: 1}); m != 6<<30 || err != nil {
		t.Error(m, err)
	}
	if m, err := half.On(GPU{Memory: 100 << 20, Waiting: 3}); err == nil {
		// 0 would be the whole GPU
		t.Error(m)
	}
	for _, p := range []Profile{{}, {Memory: half}, {Memory: half, Share: 1, Cap: 101}} {
		if p.Check() == nil {
			t.Errorf("%+v is taken", p)
		}
	}
}

// TestUserSessions: without a number a user has half, and of an odd number the larger one.
func TestUserSessions(t *testing.T) {
	for _, c := range []struct {
		user UserSessions
		all  Sessions
		want int
	}{{0, 64, 32}, {0, 7, 4}, {0, 1, 1}, {5, 64, 5}, {100, 64, 100}} {
		if n := c.user.Of(c.all); n != c.want {
			t.Errorf("%v of %v: %d, want %d", c.user, c.all, n, c.want)
		}
	}
}

func FuzzWords(f *testing.F) {
	for _, s := range []string{"16GiB", "none", "4", "25%", "1/4", "0", "-1", "18446744073709551615T"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var (
			a, a2 Memory
			b, b2 Share
			c, c2 Cap
			d, d2 Sessions
			e, e2 Portion
			h, h2 HostMemory
			u, u2 UserSessions
		)
		for _, w := range [][2]word{{&a, &a2}, {&b, &b2}, {&c, &c2}, {&d, &d2}, {&e, &e2}, {&h, &h2}, {&u, &u2}} {
			if w[0].UnmarshalText([]byte(s)) != nil {
				continue
			}
			if err := w[1].UnmarshalText([]byte(w[0].String())); err != nil || w[0].String() != w[1].String() {
				t.Errorf("%T %q is written %s, which is read as %s, %v", w[0], s, w[0], w[1], err)
			}
		}
	})
}
