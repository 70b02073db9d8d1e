//go:build pins

// No build sets the tag: this file keeps go-nvml's version in go.mod, whose copy of the public
// header tests read.
package main

import _ "github.com/NVIDIA/go-nvml/pkg/nvml"
