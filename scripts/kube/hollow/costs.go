package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
)

// costs are what an API server has done.
type costs struct {
	requests, writes, cpu, memory float64
}

// costs reads the API server's own metrics.
func (s *sim) costs(ctx context.Context) (c costs, err error) {
	b, err := s.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return c, fmt.Errorf("the API server's metrics: %w", err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if at := strings.LastIndex(lines.Text(), "} "); at > 0 {
			name, value = lines.Text()[:at], lines.Text()[at+2:]
		}
		n, bad := strconv.ParseFloat(value, 64)
		switch {
		case !ok || bad != nil:
		case strings.HasPrefix(name, "apiserver_request_total{"):
			c.requests += n
			if !strings.Contains(name, `verb="GET"`) && !strings.Contains(name, `verb="LIST"`) && !strings.Contains(name, `verb="WATCH"`) {
				c.writes += n
			}
		case name == "process_cpu_seconds_total":
			c.cpu = n
		case name == "process_resident_memory_bytes":
			c.memory = n
		}
	}
	return c, nil
}

// less is what was done since, for so many claims.
func (c costs) less(before costs, claims int) string {
	n := float64(claims)
	return fmt.Sprintf("%.1f requests for each claim, %.1f of them writes; %.0f ms of CPU for each claim, %.0f MB of memory", (c.requests-before.requests)/n, (c.writes-before.writes)/n, 1000*(c.cpu-before.cpu)/n, c.memory/1e6)
}
