package main

import (
	"fmt"
	"strings"
)

// layers are the rooms below host/ and what they stand on, from the top. Files other than tests
// import packages of their own room and of rooms further down, never one beside or above theirs:
// two rooms that need each other hold something that belongs in a third. What stands outside host/
// has the fences of rules.go besides. See docs/ARCHITECTURE.md.
var layers = [][]string{
	{"host/causeway", "host/fleet"},
	{"host/daemon", "host/device", "host/doctor", "host/libvirt", "host/report", "host/slurm"},
	{"host/api", "host/inventory"},
	{"host/worker"},
	{"host/sandbox", "host/schedule"},
	{"host/driver", "host/limit", "host/qmp", "host/ratelog", "host/vf"},
	{"cuda", "remote", "virtio"},
	{"vhostuser"},
	{bottom},
}

// bottom is the one package of another room that everything may import; it imports nothing of this
// module.
const bottom = "remote/sys"

// roomOf is the room of a package, the longest name that holds it, and its layer; -1: it has none.
func roomOf(pkg string) (room string, layer int) {
	layer = -1
	for i, rooms := range layers {
		for _, r := range rooms {
			if below(pkg, r) && len(r) > len(room) {
				room, layer = r, i
			}
		}
	}
	return room, layer
}

// judgeLayer says what is wrong with an import of another package of this module by a file of
// package pkg; empty: nothing.
func judgeLayer(pkg, imported string) string {
	imported, ours := strings.CutPrefix(imported, module+"/")
	if !ours || !below(pkg, "host") {
		return ""
	}
	room, layer := roomOf(pkg)
	other, otherLayer := roomOf(imported)
	switch {
	case layer < 0:
		return fmt.Sprintf("%s is in no room: give it a place in layers of scripts/lint", pkg)
	case otherLayer < 0:
		return fmt.Sprintf("%s is in no room that host/ may import", imported)
	case other != room && otherLayer <= layer:
		return fmt.Sprintf("%s must not import %s: %s does not stand below it", room, imported, other)
	}
	return ""
}
