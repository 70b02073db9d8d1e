package device

import (
	"os"
	"strings"
	"testing"

	"causeway/host/worker/link"
)

// inFolder counts the files in a folder that this process has open, those without a name, too.
func inFolder(t testing.TB, dir string) (n int) {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, dir+"/") {
			n++
		}
	}
	return n
}

// TestSuspendThatFails: a session whose worker does not let go, or says that it cannot be stored,
// is not put away, and the file that was to hold it is gone.
func TestSuspendThatFails(t *testing.T) {
	for what, ready := range map[string]func(w *fakeWorker){
		"hangs": func(w *fakeWorker) { w.hang(true) },
		"cannot park": func(w *fakeWorker) {
			w.hang(true)
			w.answer(link.Parked{Number: 1, Status: link.Status{Errno: 5, Text: "busy"}})
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			inKernel(t, func(k *kernel) {
				zero := k.begin()
				k.lend(loanAt(0, 0), zero)
				ready(k.worker())
				if did, err := k.d.Suspend(t.Context(), Suspension{To: dir}); did.Sessions != 0 || err == nil && what == "cannot park" {
					// One that hangs has ended by then.
					t.Errorf("suspended %+v, %v", did, err)
				}
				if n := inFolder(t, dir); n != 0 {
					t.Errorf("%d files stay open", n)
				}
			})
		})
	}
}
