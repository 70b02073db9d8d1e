package main

import (
	"fmt"
	"hash/fnv"
	"strconv"

	"causeway/cuda/idl"
)

const versionName = "ProtocolVersion"

// setVersion makes the protocol's version a digest of all that a guest's library and a host must
// agree on: the numbers of operations, their arguments, and layouts. So two that were generated
// from different descriptions refuse each other by name, instead of taking one operation for
// another.
func setVersion(f *idl.File) error {
	h := fnv.New32a()
	var version *idl.Const
	for i := range f.Consts {
		c := &f.Consts[i]
		if c.Name == versionName {
			version = c
		}
		fmt.Fprintln(h, "const", c.Name, c.Type, c.Value)
	}
	if version == nil || version.Type != "u32" {
		return fmt.Errorf("there is no constant %s of type u32", versionName)
	}
	for _, s := range f.Structs {
		fmt.Fprintln(h, "struct", s.Name, s.Size)
		for _, fd := range s.Fields {
			fmt.Fprintln(h, fd.Name, fd.Type, fd.Count, fd.Offset)
		}
	}
	for _, o := range f.Ops {
		fmt.Fprintln(h, "op", o.Num, o.Name, o.Mode, o.Always, o.Bare, o.InLen, o.OutLen)
		for _, fd := range append(append([]idl.Field(nil), o.In...), o.Out...) {
			fmt.Fprintln(h, fd.Name, fd.Type, fd.Kind, fd.Offset)
		}
	}
	version.Value = uint64(h.Sum32())
	version.Text = strconv.FormatUint(version.Value, 10)
	return nil
}
