package meter

import (
	"strings"
	"testing"
	"time"
	"unicode"

	"causeway/remote/sys"
)

func pair(t testing.TB) (*Page, *Writer) {
	t.Helper()
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	mem, err := sys.MapPage(p.fd, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sys.UnmapPage(mem) })
	return p, Open(mem)
}

func TestCounters(t *testing.T) {
	p, w := pair(t)
	for range 3 {
		w.Call()
	}
	w.Launch()
	w.In(10)
	w.In(1 << 40)
	w.Out(7)
	w.Failed(false)
	w.Failed(true)
	want := Counters{Calls: 3, Launches: 1, BytesIn: 1<<40 + 10, BytesOut: 7, FailedCalls: 2, OutOfMemory: 1}
	if got := p.Counters(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if Open(make([]byte, 8)) != nil || Open(nil) != nil {
		t.Error("a page that is too small")
	}
}

func TestBusy(t *testing.T) {
	p, w := pair(t)
	w.Begin()
	time.Sleep(3 * time.Millisecond)
	if n := p.Counters().BusyNanos; n < 3e6 || n > 3e11 {
		t.Errorf("busy for %d ns so far", n)
	}
	w.End()
	n := p.Counters().BusyNanos
	time.Sleep(time.Millisecond)
	if again := p.Counters().BusyNanos; n < 3e6 || again != n {
		t.Errorf("busy for %d ns, then %d", n, again)
	}
	w.End() // without Begin
	if again := p.Counters().BusyNanos; again != n {
		t.Errorf("busy for %d ns, then %d", n, again)
	}
}

func TestGuest(t *testing.T) {
	p, w := pair(t)
	for said, want := range map[string]string{
		"":                        "",
		"/usr/bin/python3":        "/usr/bin/python3",
		"/tmp/\x1b[2Jx\n\u202e":   "/tmp/?[2Jx??",
		"naïve":                   "naïve",
		strings.Repeat("ab", 400): strings.Repeat("ab", 256),
	} {
		w.Guest(7, said)
		if pid, got := p.Guest(); pid != 7 || got != want {
			t.Errorf("%q became %d %q", said, pid, got)
		}
	}
	for i := range p.words { // a worker that writes anything
		p.words[i] = ^uint64(0)
	}
	if _, got := p.Guest(); strings.Trim(got, "?\ufffd") != "" || len(got) > 4*mostName {
		t.Errorf("%q", got)
	}
}

func BenchmarkCall(b *testing.B) {
	_, w := pair(b)
	for b.Loop() {
		w.Call()
		w.Launch()
	}
}

// FuzzGuest: whatever a worker writes, what people are shown has no control characters and is
// short.
func FuzzGuest(f *testing.F) {
	f.Add([]byte("/usr/bin/python3"), uint64(16))
	f.Add([]byte("\x1b]0;title\x07"), uint64(1<<63))
	f.Fuzz(func(t *testing.T, text []byte, length uint64) {
		p, _ := pair(t)
		copy(p.mem[8*wordText:], text)
		p.words[wordName] = length
		_, name := p.Guest()
		if len(name) > 4*mostName || strings.ContainsFunc(name, unicode.IsControl) {
			t.Errorf("%q", name)
		}
	})
}

func TestManaged(t *testing.T) {
	p, w := pair(t)
	w.Guest(1, strings.Repeat("x", 2*mostName)) // beside the longest name
	for _, want := range []Managed{{AtGPU: 1 << 40, Here: 1 << 30, In: 3, Out: 4, Evicted: 5, Returned: 6}, {In: 4, Out: 4, Evicted: 6, Returned: 6}} {
		w.Managed(want)
		if got := p.Counters(); got != (Counters{Managed: want}) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if _, name := p.Guest(); name != strings.Repeat("x", mostName) {
		t.Errorf("the name is %q", name)
	}
}
