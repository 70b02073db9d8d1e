package main

import (
	"bytes"
	"fmt"
	"path"
	"strings"
)

// homes are what one package does for all others: its text stands in no other Go file, but for
// tests, fakes (packages named ...test) and lint.
var homes = []struct{ text, home, use string }{
	{"unix.Eventfd(", bottom, "NewEvent"},
	{"unix.ParseUnixRights(", bottom, "Rights"},
	{"unix.SYS_FUTEX,", bottom, "FutexWake, FutexWait"},
	{"unix.MFD_ALLOW_SEALING", bottom, "NewMemory"},
	{"unix.F_GET_SEALS", bottom, "FixedSize"},
}

// notHomes are files that name such a thing and do not use it.
var notHomes = map[string]bool{
	"host/sandbox/calls_amd64.go": true, // the system calls that a worker may make
}

// judgeHomes finds what has a home elsewhere.
func judgeHomes(name string, text []byte) (found []violation) {
	dir := path.Dir(name)
	if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(dir, "test") || below(dir, "scripts") || notHomes[name] {
		return nil
	}
	for _, h := range homes {
		at := bytes.Index(text, []byte(h.text))
		if at < 0 || below(dir, h.home) {
			continue
		}
		line := 1 + bytes.Count(text[:at], []byte("\n"))
		found = append(found, violation{name, line, fmt.Sprintf("%s belongs to %s: use its %s", strings.Trim(h.text, "(,"), h.home, h.use)})
	}
	return found
}
