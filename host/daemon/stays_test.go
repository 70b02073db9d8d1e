package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"causeway/host/api"
	"causeway/host/daemon/daemontest"
)

// TestCallOff: a migration of which a device process says that it will fail is called off, once,
// and the log says why; one that libvirt does not call off goes on.
func TestCallOff(t *testing.T) {
	for name, calledOff := range map[string]string{"a migration that would have failed was called off": filepath.Join(t.TempDir(), "off"), "libvirt does not call it off": ""} {
		t.Setenv(daemontest.CalledOffEnv, calledOff)
		h := newHost(t, daemontest.Soft(1<<30)).env(daemontest.StaysEnv, "process 7: a stream captures")
		h.start()
		h.ensure(one)
		until(t, name, func() bool { return h.log.has(name) && h.log.has("process 7: a stream captures") })
		if b, err := os.ReadFile(calledOff); calledOff != "" && (err != nil || strings.Count(string(b), "\n") != 1) {
			t.Errorf("called off: %q, %v", b, err)
		}
		h.stop()
	}
}

// TestReleasedMeanwhile: a vGPU whose VM ended while no causewayd ran is ended by the next one,
// unless a VM has it again.
func TestReleasedMeanwhile(t *testing.T) {
	for name, connected := range map[string]bool{"its VM has ended": false, "a VM has it": true} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, daemontest.Soft(1<<30))
			h.start()
			h.ensure(one)
			h.tell(one, api.Status{Connected: connected})
			h.stop()
			if err := os.WriteFile(one.ReleasedPath(h.cfg.RunDir), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			h.start()
			list, err := h.c.VGPUs(t.Context())
			if err != nil || (len(list) == 1) != connected {
				t.Errorf("%d vGPUs, %v", len(list), err)
			}
			if _, err := os.Stat(one.SocketPath(h.cfg.RunDir)); (err == nil) != connected {
				t.Errorf("its socket: %v", err)
			}
		})
	}
}
