package device

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestGive: what took the socket's place before it is given away, in a folder that another user may
// change, is not given away.
func TestGive(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	secret := filepath.Join(elsewhere, "secret")
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(elsewhere, "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for name, plant := range map[string]func(at string) error{
		"link to a file":      func(at string) error { return os.Symlink(secret, at) },
		"link to a socket":    func(at string) error { return os.Symlink(socket, at) },
		"second name, file":   func(at string) error { return os.Link(secret, at) },
		"second name, socket": func(at string) error { return os.Link(socket, at) },
	} {
		if err := plant(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if err := give(d, name, 0o666, &Owner{UID: os.Getuid(), GID: os.Getgid()}); !errors.Is(err, ErrPlanted) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, path := range []string{secret, socket} {
		st, err := os.Stat(path)
		if err != nil || st.Mode().Perm() == 0o666 || int(st.Sys().(*syscall.Stat_t).Uid) != os.Getuid() {
			t.Errorf("%s was given away: %v, %v", path, st.Mode(), err)
		}
	}
}
