package device_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/device"
	"causeway/host/sandbox"
	"causeway/host/sandbox/takeover"
)

// said is what workers wrote to their standard error.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

// results are those of the attempts among what was said.
func (s *said) results(t *testing.T) map[string]takeover.Result {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	list := map[string]takeover.Result{}
	for sc := bufio.NewScanner(bytes.NewReader(s.b.Bytes())); sc.Scan(); {
		text, ok := strings.CutPrefix(sc.Text(), takeover.Prefix)
		if !ok {
			continue
		}
		var r takeover.Result
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatal(err)
		}
		list[r.Name] = r
	}
	return list
}

// guestWith is a VM with a session that keeps a secret in memory that it has lent, and a page at
// its memory's end with another.
func guestWith(t *testing.T, secret, kernel string, change func(*device.Options)) *vm {
	t.Helper()
	v := bootWith(t, change)
	_, g := start(t, v)
	_, mem, res, err := g.AddRegion(0, wire.RegionStaging, 1<<20)
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	copy(mem[5*4096:], secret)
	copy(v.Mem.Bytes[len(v.Mem.Bytes)-4096:], kernel)
	return v
}

// TestTakenOverLent: a worker that runs an attacker's code and whose session lends pages of a VM
// reaches all of that VM's memory, by the descriptors that it holds: the VM is the unit of trust,
// as docs/SECURITY.md says. It reaches no other VM's. If an attempt that is known to get through
// fails one day, the document is to say what holds then.
func TestTakenOverLent(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("root starts workers as other users")
	}
	text := func(s string) string { return "secret " + s + strings.Repeat("!", 8) }
	other := boot(t) // without a session: its worker would be one too many for the others' ends
	copy(other.Mem.Bytes[len(other.Mem.Bytes)/2:], text("of another VM"))
	self := os.Getpid() // has the memory of both VMs: it plays QEMU and the device processes
	target := takeover.Target{Marks: []takeover.Mark{
		{Name: "another session of this VM", Text: text("of a session"), Holder: self, OwnVM: true},
		{Name: "this VM's kernel", Text: text("of the kernel"), Holder: self, OwnVM: true, Behind: true},
		{Name: "another VM", Text: text("of another VM"), Holder: self},
	}}
	b, err := json.Marshal(target)
	if err != nil {
		t.Fatal(err)
	}
	results := map[sandbox.Mode]map[string]takeover.Result{}
	attack := func(t *testing.T, mode sandbox.Mode) {
		out := new(said)
		v := guestWith(t, target.Marks[0].Text, target.Marks[1].Text, func(o *device.Options) {
			space, err := sandbox.New(sandbox.NewPolicy(mode, false, nil, nil), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Skip(err)
			}
			t.Cleanup(space.Close)
			o.Spawner.Sandbox, o.Spawner.Stderr = space, out
			o.Spawner.Env = append(o.Spawner.Env, takeover.Env+"="+string(b))
		})
		// The attacker's session: what it says comes after what the other one's worker said.
		_, g, err := v.exec(4712)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		results[mode] = out.results(t)
	}
	for _, mode := range []sandbox.Mode{sandbox.Off, sandbox.On, sandbox.Strict} {
		t.Run(string(mode), func(t *testing.T) { attack(t, mode) })
	}
	free := results[sandbox.Off]
	wanted := []string{"by a descriptor", "by a mapping that grows", "by /proc/self/map_files", "by descriptors of who has it"}
	if len(free) < len(wanted)*len(target.Marks) {
		t.Fatalf("%d attempts were made", len(free))
	}
	for _, a := range target.Attempts() {
		if !slices.ContainsFunc(target.Marks, func(m takeover.Mark) bool { return strings.HasPrefix(a.Name, m.Name+": ") }) {
			continue
		}
		f, ok := free[a.Name]
		if !ok {
			t.Errorf("%s was not tried", a.Name)
		}
		if !f.Through && !a.Always {
			t.Errorf("%s fails without a sandbox too (%s): this attempt proves nothing", a.Name, f.Error)
		}
		for _, mode := range []sandbox.Mode{sandbox.On, sandbox.Strict} {
			if r := results[mode][a.Name]; r.Through != a.Remains {
				t.Errorf("%s: %s: through %v (%s), want %v", mode, a.Name, r.Through, r.Error, a.Remains)
			}
		}
		t.Logf("%-62s off: %-5v on: %v", a.Name, f.Through, results[sandbox.On][a.Name].Through)
	}
}
