package main

import (
	"bytes"
	"fmt"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// maxLines bounds files written by hand.
const maxLines = 500

// module is this repository's import path.
const module = "causeway"

// violation is one broken rule; line 0 means the whole file.
type violation struct {
	file string
	line int
	what string
}

func (v violation) String() string {
	if v.line == 0 {
		return fmt.Sprintf("%s: %s", v.file, v.what)
	}
	return fmt.Sprintf("%s:%d: %s", v.file, v.line, v.what)
}

// fence forbids packages below from to import packages below any of to.
type fence struct {
	from   string
	to     []string
	reason string
}

// Imports point one way: host -> {vhostuser, virtio, remote, cuda} -> remote/sys. Within host the
// layers say which. See docs/ARCHITECTURE.md.
var fences = []fence{
	{bottom, []string{"cuda", "host", "guest", "remote", "vhostuser", "virtio"}, "everything may stand on it"},
	{"vhostuser", []string{"cuda", "host", "remote", "guest", "virtio"}, "the vhost-user protocol knows nothing above it"},
	{"virtio", []string{"cuda", "host", "remote", "guest"}, "virtqueues and FUSE know nothing of CUDA"},
	{"remote", []string{"cuda", "host", "guest", "vhostuser", "virtio"}, "transports know rings and memory, not calls"},
	{"cuda", []string{"host", "vhostuser", "virtio", "remote", "guest"}, "the description of the API depends on nothing"},
	{"guest", []string{"host"}, "what runs in the guest must not need the host"},
}

var (
	generated = regexp.MustCompile(`(?m)^(//|/\*|#|;|<!--) ?Code generated .* DO NOT EDIT`)
	source    = map[string]bool{".go": true, ".c": true, ".h": true, ".cu": true, ".sh": true, ".py": true, ".S": true}
	commented = map[string]bool{".go": true, ".c": true, ".h": true, ".cu": true}
	binary    = map[string]bool{".so": true, ".a": true, ".o": true, ".cubin": true, ".fatbin": true, ".whl": true, ".deb": true, ".ko": true}
)

// judge applies every rule to one file; name is relative to the repository and uses slashes.
func judge(name string, text []byte) []violation {
	var found []violation
	if v := judgeBinary(name, text); v != nil {
		return append(found, *v)
	}
	for _, dir := range strings.Split(path.Dir(name), "/") {
		if dir == "vendor" || dir == "third_party" {
			return append(found, violation{name, 0, "foreign code does not live here: depend on it through go.mod"})
		}
	}
	if isShell(name, text) {
		found = append(found, judgeShell(name, text)...)
	}
	if !source[path.Ext(name)] {
		return found
	}
	if lines := bytes.Count(text, []byte("\n")); lines > maxLines && !isGenerated(text) {
		found = append(found, violation{name, 0, fmt.Sprintf("%d lines, at most %d: split it by what it does", lines, maxLines)})
	}
	if path.Ext(name) == ".go" {
		found = append(found, judgeImports(name, text)...)
		found = append(found, judgeHomes(name, text)...)
	}
	if commented[path.Ext(name)] {
		found = append(found, judgeComments(name, text)...)
		found = append(found, judgeWords(name, text)...)
	}
	return found
}

// isGenerated accepts the marker among the first lines only, where tools look for it.
func isGenerated(text []byte) bool {
	head := text
	if len(head) > 2048 {
		head = head[:2048]
	}
	return generated.Match(head)
}

func judgeBinary(name string, text []byte) *violation {
	inSeeds := strings.Contains("/"+name, "/testdata/")
	switch {
	case inSeeds:
		return nil
	case bytes.HasPrefix(text, []byte("\x7fELF")), binary[path.Ext(name)], strings.Contains(path.Base(name), ".so."):
		return &violation{name, 0, "a binary: build products and other people's binaries are not committed"}
	}
	return nil
}

func judgeImports(name string, text []byte) []violation {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.ImportsOnly)
	if err != nil {
		return []violation{{name, 0, err.Error()}}
	}
	base := strings.TrimSuffix(path.Base(name), ".go")
	test := strings.HasSuffix(base, "_test")
	var found []violation
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		line := files.Position(spec.Pos()).Line
		switch {
		case imported == "unsafe" && !test && !hasPart(base, "unsafe") && !hasPart(base, "cgo"):
			found = append(found, violation{name, line, "unsafe belongs in a file named *_unsafe.go"})
		case imported == "C" && !hasPart(base, "cgo"):
			found = append(found, violation{name, line, "cgo belongs in a file named *_cgo.go"})
		case strings.Contains(imported, "/vendor/"):
			found = append(found, violation{name, line, "imports a vendored path"})
		}
		if what := judgeLayer(path.Dir(name), imported); what != "" && !test {
			found = append(found, violation{name, line, what})
		}
		for _, f := range fences {
			if !below(path.Dir(name), f.from) || imported == module+"/"+bottom {
				continue
			}
			for _, to := range f.to {
				if below(imported, module+"/"+to) {
					found = append(found, violation{name, line, fmt.Sprintf("%s must not import %s: %s", f.from, imported, f.reason)})
				}
			}
		}
	}
	return found
}

// hasPart reports whether a file name's underscore-separated end names the part: driver_cgo,
// map_unsafe_linux. The name before the first underscore does not count. A cgo file may use unsafe:
// C pointers need it.
func hasPart(base, part string) bool {
	parts := strings.Split(base, "_")
	for _, p := range parts[1:] {
		if p == part {
			return true
		}
	}
	return false
}

// below reports whether a slash-separated path is dir or inside it.
func below(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
