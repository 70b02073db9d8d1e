// Command causeway is the host side of Causeway: one binary, whose subcommands run programs on this
// machine's GPUs (run), give a VM a virtual GPU (device), serve programs elsewhere (serve), and
// execute the calls of one CUDA process (worker, internal).
//
// Each command is a file. A command prints errors as one sentence with cause and remedy, and exits
// with status 1; run exits as the program that it ran.
package main
