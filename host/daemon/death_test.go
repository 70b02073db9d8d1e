package daemon

import (
	"strings"
	"testing"
)

func TestLastCrash(t *testing.T) {
	const note = "time=x level=ERROR msg=\"vGPU lost\" vgpu=vm1/gpu0 why=\"it said: panic: old\"\n"
	long := strings.Repeat("é", 300)
	for log, want := range map[string]string{
		"":                                      "",
		"time=x level=WARN msg=\"a session\"\n": "",
		"time=x msg=y\npanic: assignment to entry in nil map\n\ngoroutine 1 [running]:\nmain.main()\n": "panic: assignment to entry in nil map",
		"fatal error: concurrent map writes\n\ngoroutine 7:\npanic: later\n":                           "fatal error: concurrent map writes",
		"SIGSEGV: segmentation violation\nPC=0x1\n":                                                    "SIGSEGV: segmentation violation",
		"causeway: first\ncauseway: listen: address in use\n":                                          "listen: address in use",
		"panic: of an earlier one\n" + note + "time=x msg=y\n":                                         "",
		"panic: of an earlier one\n" + note + "panic: of this one\n":                                   "panic: of this one",
		// A guest cannot begin a line.
		"time=x msg=\"guest says\" program=\"panic: x\"\n": "",
		"panic: " + long: "panic: " + strings.Repeat("é", 96) + "...",
	} {
		if got := lastCrash(log); got != want {
			t.Errorf("%.60q: %q, want %q", log, got, want)
		}
	}
}
