package takeover_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"causeway/host/sandbox"
	"causeway/host/sandbox/takeover"
)

// What the test run by a user gets from root's.
const (
	userTarget  = "CAUSEWAY_TEST_TARGET"
	userProgram = "CAUSEWAY_TEST_PROGRAM"
	nobody      = 65534
)

// asUser runs TestAsUser as another user, who may read and write less, but whose workers keep their
// user.
func asUser(t *testing.T, program string, target *takeover.Target) {
	t.Helper()
	b, err := json.Marshal(target)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestAsUser$", "-test.v")
	cmd.Env = append(os.Environ(), userTarget+"="+string(b), userProgram+"="+program)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestAsUser") {
		t.Errorf("as a user: %v\n%s", err, out)
	}
}

// TestAsUser is the attack on a worker of a parent that is not root.
func TestAsUser(t *testing.T) {
	text := os.Getenv(userTarget)
	if text == "" {
		t.Skip("run by TestTakeover as another user")
	}
	target := new(takeover.Target)
	if err := json.Unmarshal([]byte(text), target); err != nil {
		t.Fatal(err)
	}
	policy := real(sandbox.On)
	if len(policy.Write) > 0 {
		t.Errorf("workers of guests may write %q", policy.Write)
	}
	t.Setenv("HOME", "/home/user")
	if policy.ShareCache(); !slices.Equal(policy.Write, []string{"/home/user/.nv"}) {
		t.Errorf("workers of the user's own programs may write %q", policy.Write)
	}
	program := os.Getenv(userProgram)
	victim, _, _ := session(t, program, soft(sandbox.On)) // the same user's
	target.Worker, target.Parent = victim.PID(), os.Getpid()
	free := attack(t, program, soft(sandbox.Off), target)
	through := 0
	for _, r := range free {
		if r.Through {
			through++
		}
	}
	if through < 30 {
		t.Errorf("%d attempts get through without a sandbox, too few to prove something", through)
	}
	for _, mode := range []sandbox.Mode{sandbox.On, sandbox.Strict} {
		results := attack(t, program, soft(mode), target)
		if len(results) != len(free) {
			t.Errorf("%s: %d attempts, %d without a sandbox", mode, len(results), len(free))
		}
		for name, r := range results {
			if r.Through != r.Needed {
				t.Errorf("%s: %s: %s", mode, name, verdict(r))
			}
		}
	}
	t.Logf("%d of %d attempts get through without a sandbox", through, len(free))
}
