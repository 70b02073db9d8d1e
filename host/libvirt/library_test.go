//go:build libvirt_dlopen

package libvirt

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const libraryEnv = "CAUSEWAY_TEST_LIBVIRT"

// TestLibraryMissing: where libvirt's library cannot be loaded, the error names the packages that
// have it. The loader is given a file that is no library before it looks elsewhere.
func TestLibraryMissing(t *testing.T) {
	if os.Getenv(libraryEnv) != "" {
		if _, err := Open(t.Context(), "", "vm1"); !errors.Is(err, ErrNoLibrary) {
			t.Fatalf("%v, want %v", err, ErrNoLibrary)
		}
		return
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "libvirt.so.0"), []byte("no library"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run", "^TestLibraryMissing$")
	cmd.Env = append(os.Environ(), libraryEnv+"=1", "LD_LIBRARY_PATH="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
