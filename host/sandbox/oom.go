package sandbox

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Scores by which the kernel chooses whom to end when there is no memory left (proc(5),
// oom_score_adj): workers go first, which one program loses; then device processes, which a VM
// loses its GPU with. causewayd has less than both by its unit.
const (
	DeviceOOM = 100
	WorkerOOM = 500
)

// RaiseOOM gives a process of this one's user, or of root's, a score that is at least so high. It
// needs no privilege.
func RaiseOOM(pid, score int) error {
	path := fmt.Sprintf("/proc/%d/oom_score_adj", pid)
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("OOM score: %w", err)
	}
	if now, err := strconv.Atoi(strings.TrimSpace(string(b))); err != nil || now >= score {
		return err
	}
	if err := os.WriteFile(path, strconv.AppendInt(nil, int64(score), 10), 0); err != nil {
		return fmt.Errorf("OOM score: %w", err)
	}
	return nil
}
