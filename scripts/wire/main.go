// Command wire is a link between two hosts that misbehaves as it is told, where the kernel has no
// netem: of scripts that look what sessions make of it.
//
//	wire proxy ADDRESS:PORT...       TCP connections to the last address, one listener for each of the others
//	wire packets [flags] PID PID     IP packets between two network namespaces, those of the processes, whose devices wirea and wireb it makes (root)
//
// A proxy is told by lines of its standard input: "reset N" resets the connections of listener N (0
// is the first), "down N" lets no byte pass, "up N" does again, "count" prints how many connections
// there are. It ends at the end of its input. Packets are lost, held back, overtaken and doubled by
// chance, from a seed; at SIGTERM it prints what became of them.
package main

import (
	"fmt"
	"os"
)

func main() {
	err := fmt.Errorf("usage: wire proxy ADDRESS... | wire packets [flags] PID PID")
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "proxy":
			err = proxy(os.Args[2:], os.Stdin, os.Stdout)
		case "packets":
			err = packets(os.Args[2:])
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "wire:", err)
		os.Exit(1)
	}
}
