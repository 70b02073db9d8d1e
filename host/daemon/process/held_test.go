package process

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

// TestHeld: a process that is held begins when it is told to, and hears that it never will when who
// started it lets go of it, or ends it.
func TestHeld(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(p *Process) error
		want string
	}{
		"begun":    {(*Process).Begin, "begins\n"},
		"given up": {func(p *Process) error { return p.hold.Close() }, "gives up\n"},
		"ended":    {func(p *Process) error { return p.End(context.Background(), time.Minute) }, "gives up\n"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := os.Create(t.TempDir() + "/log")
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			p, err := Start(Command{
				Path: "/bin/sh", Args: []string{"-c", `trap : TERM; echo up >&2; case $(head -c 1 <&3 | wc -c) in 1) echo begins ;; *) echo gives up ;; esac >&2`},
				Env: []string{"PATH=/usr/bin:/bin"}, Output: out, Held: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			for said := ""; said == ""; time.Sleep(time.Millisecond) {
				// Else its trap might come too late.
				b, err := os.ReadFile(out.Name())
				if err != nil {
					t.Fatal(err)
				}
				said = string(b)
			}
			if err := c.do(p); err != nil {
				t.Error(err)
			}
			wait(t, p)
			b, err := os.ReadFile(out.Name())
			if got := strings.TrimPrefix(string(b), "up\n"); err != nil || got != c.want {
				t.Errorf("it says %q, %v, want %q", got, err, c.want)
			}
		})
	}
	p, _ := start(t, "exit 0")
	wait(t, p)
	if err := p.End(context.Background(), time.Minute); err != nil {
		t.Errorf("the end of one that was not held: %v", err)
	}
}
