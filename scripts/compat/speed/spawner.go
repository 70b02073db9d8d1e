package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// spawner is the server for programs whose whole life is a sample: it runs natively or under
// `causeway run`, and starts args[1:] whenever it is asked. args[0] is how long it rests before
// each start, unmeasured, so that a worker for the next process can get ready as it does in daily
// life.
func spawner(in io.Reader, out io.Writer, args []string) error {
	rest, err := time.ParseDuration(args[0])
	if err != nil || len(args) < 2 {
		return fmt.Errorf("spawner REST COMMAND...: %w", err)
	}
	argv := args[1:]
	base := filepath.Base(argv[len(argv)-1])
	name := strings.TrimSuffix(base, filepath.Ext(base)) + "_whole_process"
	fmt.Fprintln(out, "ready")
	for lines := bufio.NewScanner(in); lines.Scan() && lines.Text() == "go"; {
		time.Sleep(rest)
		c := exec.Command(argv[0], argv[1:]...)
		c.Stderr = os.Stderr
		start := time.Now()
		printed, err := c.Output()
		seconds := time.Since(start).Seconds()
		if err != nil {
			return fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
		}
		fmt.Fprintf(out, "%s %f s <=1.0\n%s.\n", name, seconds, printed)
	}
	return nil
}
