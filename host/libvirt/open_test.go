package libvirt

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A build without libvirt says so; one with it refuses hosts that are not this one before it loads
// anything.
func TestOpenRefuses(t *testing.T) {
	_, err := Open(t.Context(), "qemu+ssh://elsewhere/system", "vm1")
	if !errors.Is(err, ErrNoLibvirt) && !errors.Is(err, ErrRemote) {
		t.Errorf("%v", err)
	}
}

// TestOpenSilent: a libvirt that takes connections and answers nothing, as one does that is
// stopped, is waited for as long as there is time, and no longer than whoever asks.
func TestOpenSilent(t *testing.T) {
	dir, err := os.MkdirTemp("", "lv") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	ln, err := net.Listen("unix", socket) // and no Accept
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	uri := "qemu+unix:///system?mode=direct&socket=" + socket
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	gone, leave := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, leave)
	for ctx, want := range map[context.Context]error{short: ErrSilent, gone: context.Canceled} {
		begin := time.Now()
		_, err := Open(ctx, uri, "vm1")
		if errors.Is(err, ErrNoLibvirt) || errors.Is(err, ErrNoLibrary) {
			t.Skip(err)
		}
		if !errors.Is(err, want) || time.Since(begin) > 30*time.Second {
			t.Errorf("%v after %v, want %v", err, time.Since(begin), want)
		}
	}
}
