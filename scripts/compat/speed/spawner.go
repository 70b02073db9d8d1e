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

// rest lies before each start, unmeasured, so that a worker for the next process can get ready as it does in daily life.
const rest = time.Second

// spawner is the server for programs whose whole life is a sample: it runs natively or under `causeway run`, and starts
// argv whenever it is asked.
func spawner(in io.Reader, out io.Writer, argv []string) error {
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
