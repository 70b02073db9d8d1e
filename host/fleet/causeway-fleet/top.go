package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	prometheus "github.com/prometheus/client_golang/api"
	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"

	"causeway/host/fleet/overview"
	"causeway/host/report"
)

// prometheusVariable is where the address is looked for that --prometheus does not give.
const prometheusVariable = "PROMETHEUS_URL"

// topFlags are those of the command.
type topFlags struct {
	prometheus, format string
	window             time.Duration
}

func topCommand(a *access) *cobra.Command {
	var f topFlags
	c := &cobra.Command{
		Use:   "top",
		Short: "Show what the vGPUs of all nodes do: GPU time, memory, sessions",
		Long: `Shows the vGPUs of claims, the busiest first, with the part of a GPU's time that they took within the last minute (--window), the GPU memory that their programs use
of what the claim has, and the CUDA processes that are open. Claims and pods are the API server's, figures those of the causewayds, which are read from a Prometheus that reads them
(metrics.listen of each node and GPU host; docs/OPERATIONS.md). On one node "causeway top" shows more, without a Prometheus.`,
		Example: `  kubectl -n monitoring port-forward service/prometheus 9090 &
  causeway-fleet top --prometheus http://127.0.0.1:9090
  watch causeway-fleet top -n team                  # with PROMETHEUS_URL in the environment`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, a) },
	}
	fl := c.Flags()
	fl.StringVar(&f.prometheus, "prometheus", "", "`URL` of the Prometheus that reads the causewayds (default: $"+prometheusVariable+")")
	fl.DurationVar(&f.window, "window", time.Minute, "over which time GPU time is counted: at least two readings of Prometheus'")
	fl.StringVar(&f.format, "format", "table", "table or json")
	return c
}

func (f *topFlags) run(cmd *cobra.Command, a *access) error {
	url := cmp.Or(f.prometheus, os.Getenv(prometheusVariable))
	switch {
	case f.format != "table" && f.format != "json":
		return fmt.Errorf("--format %q: use table or json", f.format)
	case url == "":
		return fmt.Errorf("no Prometheus is known: give --prometheus http://HOST:9090, or set %s; on one node `causeway top` takes none", prometheusVariable)
	case f.window < time.Second:
		return fmt.Errorf("--window %v: use 1s or more", f.window)
	}
	cl, _, err := a.connect()
	if err != nil {
		return err
	}
	fleet, err := overview.Read(cmd.Context(), cl, a.namespace)
	if err != nil {
		return err
	}
	u, err := uses(cmd.Context(), url, f.window)
	if err != nil {
		return err
	}
	list := fleet.Top(u)
	if f.format == "json" {
		e := json.NewEncoder(cmd.OutOrStdout())
		e.SetIndent("", "  ")
		return e.Encode(list)
	}
	for _, what := range fleet.Unread {
		fmt.Fprintln(report.Safe(cmd.ErrOrStderr()), "not shown:", what)
	}
	return overview.TopTable(cmd.OutOrStdout(), list)
}

// useTime bounds a question to Prometheus, mostUses its answer's series: claims of 5,000 hosts.
const (
	useTime  = 20 * time.Second
	mostUses = 1 << 18
)

// errPrometheus says that there are no figures.
var errPrometheus = errors.New("Prometheus")

// uses asks a Prometheus what vGPUs of claims do.
func uses(ctx context.Context, url string, window time.Duration) (*overview.Uses, error) {
	ctx, cancel := context.WithTimeout(ctx, useTime)
	defer cancel()
	c, err := prometheus.NewClient(prometheus.Config{Address: url, Client: &http.Client{Timeout: useTime}})
	if err != nil {
		return nil, fmt.Errorf("%w at %s: %w", errPrometheus, url, err)
	}
	u := &overview.Uses{}
	for _, q := range []struct {
		of  string // %s: which vGPUs
		add func(*overview.Use, float64)
	}{
		{fmt.Sprintf("rate(causeway_vgpu_busy_seconds_total%%s[%s])", model.Duration(window)), func(u *overview.Use, x float64) { u.Busy += x }},
		{"causeway_vgpu_memory_used_bytes%s", func(u *overview.Use, x float64) { u.Memory += uint64(x) }},
		{"causeway_vgpu_sessions%s", func(u *overview.Use, x float64) { u.Sessions += int(x) }},
	} {
		// A node's vGPU is called after the claim as its VM, a GPU host's as its vGPU.
		v, _, _, err := prometheusv1.NewAPI(c).Query(ctx, fmt.Sprintf(q.of, `{vm=~"claim-.+"}`)+" or "+fmt.Sprintf(q.of, `{vgpu=~"claim-.+"}`), time.Now())
		if err != nil {
			return nil, fmt.Errorf("%w at %s: %w", errPrometheus, url, err)
		}
		list, ok := v.(model.Vector)
		if !ok || len(list) > mostUses {
			return nil, fmt.Errorf("%w at %s answers with %d of the type %v", errPrometheus, url, len(list), v.Type())
		}
		for _, s := range list {
			x := float64(s.Value)
			if x != x || x < 0 || x > 1<<62 { // no figure
				continue
			}
			u.Of(string(s.Metric["vm"]), string(s.Metric["vgpu"]), func(is *overview.Use) { q.add(is, x) })
		}
	}
	return u, nil
}
