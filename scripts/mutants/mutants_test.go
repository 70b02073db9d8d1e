package main

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const someGo = `package p

func f(a []int, log logger) error {
	if len(a) < 2 && a[0] == 1 {
		return fmt.Errorf("%d of %d", len(a)+1, 2)
	}
	n, err := g(a)
	if err != nil {
		return err
	}
	log.Info("it goes on", "n", n+1)
	if n > 7 && b {
		log.Warn("much")
	}
	total += n - 1
	go h()
	mu.Lock()
	defer mu.Unlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer cancel()
	defer t.Stop()
	d.reached(1)
	sys.Pause()
	text += "of " + b
	a = append(make([]int, 0, n-3), n/4)
	if n > total {
		n = total
	}
	if b && (n > total || c) {
		total = n
	}
	if n < total {
		prefetch(a)
	}
	switch {
	case n > 3:
		stop()
	}
	return nil
}
`

const someC = "static int f(int a)\n{\n\tint b = 1;\n\t/* a < b, or\n\t   b > a */\n\tif (a > b && a)\n\t\treturn -1;\n\tatomic_store(&x, b);\n\tpthread_mutex_unlock(&m);\n\tcw_log(\"%d\", a + 1);\n\tcw_pause(1);\n\tif (fd >= 0)\n\t\treturn 0;\n\tatomic_load_explicit(&x, memory_order_acquire);\n\treturn b + 1;\n}\n" +
	"static int g(int a)\n{\n\textern int b;\n\tcw_why(s, \"%s\",\n\t       a == 0 ? \"none\" : \"some\");\n\tswitch (a) {\n\tcase 4: return \"four\";\n\t}\n\twhat = \"a port\";\n\tif (mem >= 0)\n\t\ta = b - a < b ? b - a : b;\n" +
	"\tif (a > b)\n\t\ta = b;\n\tn = a < b ? a : c;\n}\n"

// TestSites: what is changed, and what is not: texts for people, locks, declarations, errors that
// are looked at.
func TestSites(t *testing.T) {
	for _, c := range []struct {
		name  string
		sites []site
		want  []string
	}{
		{"go", goSites("a.go", []byte(someGo)), []string{
			`(len(a) < 2 && a[0] == 1) && false`, `!(len(a) < 2 && a[0] == 1)`, `len(a) < 2`, `a[0] == 1`, `len(a) <= 2`, `len(a) < 3`, `a[0] != 1`, `a[0] == 2`,
			`n + 1`, `n - 2`, `n >= 3`, `n > 4`, `{}`, `{}`, `{}`, `{}`, `false && (n > 3)`, `(n > total) && false`, `{}`,
			`b`, `(n > total || c)`, `n > total`, `c`, `!(b && (n > total || c))`, `(b && (n > total || c)) && false`, `{}`,
		}},
		{"c", cSites("a.c", []byte(someC)), []string{" >= ", " || ", "(a > b && a) && 0", "!(a > b && a)", "(fd >= 0) && 0", "!(fd >= 0)", "(void)0", "(void)0", "",
			"(mem >= 0) && 0", "!(mem >= 0)", "(void)0", "(a > b) && 0", "!(a > b)", "(void)0", " <= ", "(void)0"}},
	} {
		var got []string
		for _, s := range c.sites {
			for _, x := range s.changes {
				got = append(got, x.by)
			}
		}
		slices.Sort(got)
		slices.Sort(c.want)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestDraw: a draw comes again from its seed, has nothing twice, and each mutant of Go is Go.
func TestDraw(t *testing.T) {
	dir := t.TempDir()
	file, other := filepath.Join(dir, "a.go"), filepath.Join(dir, "b.go")
	if err := errors.Join(os.WriteFile(file, []byte(someGo), 0o600), os.WriteFile(other, []byte(someGo), 0o600)); err != nil {
		t.Fatal(err)
	}
	draws := func(seed uint64) (list []string) {
		d, err := newDraw(seed, "go", []area{{name: "one", patterns: []string{file}}, {name: "two", patterns: []string{file, other}}}, goSites, "")
		if err != nil {
			t.Fatal(err)
		}
		for m, ok := d.next(); ok; m, ok = d.next() {
			if _, err := parser.ParseFile(token.NewFileSet(), "a.go", m.text(), 0); err != nil {
				t.Errorf("%s: %v", m.what, err)
			}
			list = append(list, fmt.Sprintf("%s %s %d %s", m.name, m.area, m.line, m.what))
		}
		return list
	}
	one := draws(1)
	if again := draws(1); !slices.Equal(one, again) || slices.Equal(one, draws(2)) {
		t.Errorf("%q, then %q", one, again)
	}
	seen := map[string]bool{}
	for _, m := range one {
		_, place, _ := strings.Cut(m, " ")
		if seen[place] {
			t.Errorf("%s twice", place)
		}
		seen[place] = true
	}
	if len(one) != 2*len(goSites("a.go", []byte(someGo))) {
		t.Errorf("%d mutants", len(one))
	}
}

// TestReport: the file has what git apply takes: the change of a survivor leads from the file as it
// is to the mutant.
func TestReport(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for i, text := range []string{someGo, someC} {
		name := [...]string{"a.go", "a.c"}[i]
		sites := [...]func(string, []byte) []site{goSites, cSites}[i](name, []byte(text))
		for _, s := range sites {
			for _, c := range s.changes {
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				r, err := newReport("survivors")
				if err != nil {
					t.Fatal(err)
				}
				m := mutant{"x1", "one", name, s.line, c}
				r.survivor(m)
				if err := r.close(); err != nil {
					t.Fatal(err)
				}
				if said, err := exec.Command("git", "apply", "survivors").CombinedOutput(); err != nil {
					t.Fatalf("%v: %v: %s", m, err, said)
				}
				if got, err := os.ReadFile(name); err != nil || string(got) != string(m.text()) {
					t.Fatalf("%v: %v: %s", m, err, got)
				}
				if err := os.Remove("survivors"); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
