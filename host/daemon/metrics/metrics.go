// Package metrics tells Prometheus how the host's GPUs and vGPUs are. All of it is read when
// Prometheus asks; nothing is kept here.
//
// Names have base units, as Prometheus wishes: bytes, seconds, watts, ratios of 1. What is summed
// over the sessions of a vGPU counts those that have ended too, so counters do not fall while its
// device process lives.
package metrics

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"causeway/host/api"
)

// Source is what is told.
type Source interface {
	GPUs(ctx context.Context) ([]api.GPU, error)
	VGPUs(ctx context.Context) ([]api.VGPU, error)
	Version() api.Version
	// Counts is of requests to the API, and how often the scheduler was started again.
	Counts() Counts
	// Certificate is when the certificate ends by which other hosts know this one; the zero time:
	// none knows it now. needed: it has to do with others.
	Certificate() (end time.Time, needed bool)
}

// Counts of a causewayd, since its start.
type Counts struct {
	OK, Failed, Refused uint64 // requests
	SchedulerRestarts   uint64
	SchedulerUp         bool
}

// timeout is what an answer to Prometheus may take.
const timeout = 5 * time.Second

// Handler serves the text that Prometheus reads.
func Handler(s Source, log *slog.Logger) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(New(s, log))
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 2 * timeout})
}

// metric is one series of a kind of thing.
type metric[T any] struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*T) (value float64, known bool)
}

// Collector implements prometheus.Collector.
type Collector struct {
	src   Source
	log   *slog.Logger
	gpus  []metric[api.GPU]
	vgpus []metric[api.VGPU]

	gpuInfo, vgpuInfo, vgpuServer, vgpuState, build, started, requests, restarts, schedulerUp, certificate, port, failed *prometheus.Desc
}

// Labels of a GPU's and a vGPU's series.
var (
	gpuLabels  = []string{"gpu"}
	vgpuLabels = []string{"vm", "vgpu", "gpu"}
)

// New makes a Collector.
func New(src Source, log *slog.Logger) *Collector {
	one := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("causeway_"+name, help, labels, nil)
	}
	return &Collector{
		src: src, log: log, gpus: gpuMetrics(), vgpus: vgpuMetrics(),
		gpuInfo:     one("gpu_info", "A GPU of this host; always 1.", "gpu", "index", "backend", "model", "driver"),
		vgpuInfo:    one("vgpu_info", "A vGPU and the version of its device process; always 1.", "vm", "vgpu", "gpu", "version"),
		vgpuServer:  one("vgpu_server_info", "A vGPU that lies on a GPU server, or that another host has here by a lease; always 1.", "vm", "vgpu", "server", "host"),
		vgpuState:   one("vgpu_state", "1 for the state that a vGPU is in: waiting for its VM, connected, or lost.", "vm", "vgpu", "gpu", "state"),
		build:       one("build_info", "The version of causewayd; always 1.", "version"),
		started:     one("daemon_start_time_seconds", "When causewayd started, in seconds since 1970."),
		requests:    one("api_requests_total", "Requests to causewayd's API: ok, failed, or refused for want of a role.", "result"),
		restarts:    one("scheduler_restarts_total", "How often the scheduler was started again because it had ended."),
		schedulerUp: one("scheduler_up", "1 if the scheduler runs and answers."),
		certificate: one("certificate_end_time_seconds", "When the certificate ends by which other hosts know this one, in seconds since 1970; 0 if none knows it now."),
		port:        one("port_served", "1 if a port that the configuration names by this key is served.", "key"),
		failed:      one("scrape_failed", "1 if the GPUs or vGPUs could not be read for this answer.", "what"),
	}
}

func gpuMetrics() []metric[api.GPU] {
	var list []metric[api.GPU]
	add := func(name, help string, of func(*api.GPU) (float64, bool)) {
		list = append(list, metric[api.GPU]{prometheus.NewDesc("causeway_gpu_"+name, help, gpuLabels, nil), prometheus.GaugeValue, of})
	}
	real := func(g *api.GPU) bool { return g.Backend != "soft" } // the software GPU has no sensors
	add("memory_bytes", "Memory of the GPU.", func(g *api.GPU) (float64, bool) { return float64(g.Memory), true })
	add("memory_used_bytes", "Memory in use by anybody.", func(g *api.GPU) (float64, bool) { return float64(g.Used), real(g) })
	add("memory_promised_bytes", "Memory promised to vGPUs by their limits.", func(g *api.GPU) (float64, bool) { return float64(g.Promised), true })
	add("utilization_ratio", "Part of the time in which the GPU had work.", func(g *api.GPU) (float64, bool) { return float64(g.Utilization) / 100, real(g) })
	add("temperature_celsius", "Temperature of the GPU.", func(g *api.GPU) (float64, bool) { return float64(g.Temperature), g.Temperature != 0 })
	add("power_watts", "Power that the GPU takes.", func(g *api.GPU) (float64, bool) { return float64(g.PowerMW) / 1000, g.PowerMW != 0 })
	add("drained", "1 if the GPU gets no new vGPU.", func(g *api.GPU) (float64, bool) { return flag(g.Drained), true })
	add("vgpus", "vGPUs on the GPU.", func(g *api.GPU) (float64, bool) { return float64(len(g.VGPUs)), true })
	return list
}

func vgpuMetrics() []metric[api.VGPU] {
	var list []metric[api.VGPU]
	add := func(name, help string, kind prometheus.ValueType, of func(*api.VGPU) (float64, bool)) {
		list = append(list, metric[api.VGPU]{prometheus.NewDesc("causeway_vgpu_"+name, help, vgpuLabels, nil), kind, of})
	}
	upstream := func(name, help string, of func(*api.Upstream) float64) {
		add(name, help, prometheus.GaugeValue, func(v *api.VGPU) (float64, bool) {
			if v.Upstream == nil {
				return 0, false
			}
			return of(v.Upstream), true
		})
	}
	upstream("lease_holds", "1 if the GPU server renews the vGPU's lease; absent for a vGPU of this host.", func(u *api.Upstream) float64 { return flag(u.Error == "") })
	upstream("server_round_trip_seconds", "Round trip of the last renewal of the vGPU's lease.", func(u *api.Upstream) float64 { return u.RoundTrip.Seconds() })
	spec := func(name, help string, of func(*api.Limits) float64, none bool) {
		add(name, help, prometheus.GaugeValue, func(v *api.VGPU) (float64, bool) {
			x := of(&v.Spec.Limits)
			return x, x != 0 || !none
		})
	}
	status := func(name, help string, kind prometheus.ValueType, of func(*api.Status) float64) {
		add(name, help, kind, func(v *api.VGPU) (float64, bool) {
			if v.Status == nil {
				return 0, false
			}
			return of(v.Status), true
		})
	}
	count := func(name, help string, of func(*api.Counters) float64) {
		status(name, help, prometheus.CounterValue, func(s *api.Status) float64 { return of(sum(s)) })
	}
	seconds := func(ns uint64) float64 { return float64(ns) / 1e9 }
	spec("memory_limit_bytes", "Limit of GPU memory; absent without a limit.", func(l *api.Limits) float64 { return float64(l.Memory) }, true)
	spec("share", "Share of GPU time, relative to other vGPUs'.", func(l *api.Limits) float64 { return float64(l.Share) }, false)
	spec("cap_ratio", "Most GPU time; absent without a cap.", func(l *api.Limits) float64 { return float64(l.Cap) / 100 }, true)
	spec("sessions_limit", "CUDA processes that may run at once.", func(l *api.Limits) float64 { return float64(l.Sessions) }, false)
	spec("host_memory_limit_bytes", "Limit of the host's memory that requests may hold.", func(l *api.Limits) float64 { return float64(l.HostMemory) }, true)
	spec("user_sessions_limit", "CUDA processes that one user of the guest may run at once; absent where that is half of all.", func(l *api.Limits) float64 { return float64(l.UserSessions) }, true)
	status("host_memory_used_bytes", "The host's memory that requests of the vGPU's programs hold.", prometheus.GaugeValue, func(s *api.Status) float64 { return float64(s.Host) })
	status("memory_used_bytes", "GPU memory that the vGPU uses, contexts included.", prometheus.GaugeValue, func(s *api.Status) float64 { return float64(s.Memory) })
	status("memory_room_bytes", "GPU memory for which the vGPU has room now, where more is promised than there is; 0: all of its limit.", prometheus.GaugeValue, func(s *api.Status) float64 { return float64(s.Room) })
	status("memory_away_bytes", "GPU memory that sessions held which are suspended for others' sake.", prometheus.GaugeValue, func(s *api.Status) float64 { return float64(s.Away) })
	status("swapped_out_total", "Sessions that left the GPU for others.", prometheus.CounterValue, func(s *api.Status) float64 { return float64(s.Swaps.Out) })
	status("swapped_in_total", "Sessions that came back.", prometheus.CounterValue, func(s *api.Status) float64 { return float64(s.Swaps.In) })
	status("swapped_out_bytes_total", "GPU memory that left with them.", prometheus.CounterValue, func(s *api.Status) float64 { return float64(s.Swaps.OutBytes) })
	status("swapped_in_bytes_total", "GPU memory that came back with them.", prometheus.CounterValue, func(s *api.Status) float64 { return float64(s.Swaps.InBytes) })
	status("room_wait_seconds_total", "Time that sessions waited for room on the GPU.", prometheus.CounterValue, func(s *api.Status) float64 { return seconds(s.Swaps.WaitNS) })
	status("room_denied_total", "Allocations for which no room could be made.", prometheus.CounterValue, func(s *api.Status) float64 { return float64(s.Swaps.Denied) })
	status("sessions", "CUDA processes that run.", prometheus.GaugeValue, func(s *api.Status) float64 { return float64(len(s.Sessions)) })
	status("sessions_opened_total", "CUDA processes so far.", prometheus.CounterValue, func(s *api.Status) float64 { return float64(s.Opened) })
	status("sessions_refused_total", "CUDA processes refused by a limit.", prometheus.CounterValue, func(s *api.Status) float64 { return float64(s.Refused) })
	status("memory_peak_bytes", "Most GPU memory that a session of the vGPU has used.", prometheus.GaugeValue, func(s *api.Status) float64 { return float64(sum(s).MemoryPeak) })
	status("throttled", "1 if work of the vGPU is held back for the sake of limits now.", prometheus.GaugeValue, func(s *api.Status) float64 { return flag(sum(s).ThrottledNow) })
	status("limits_unheld", "1 if share and cap do not hold now, for want of the scheduler.", prometheus.GaugeValue, func(s *api.Status) float64 { return flag(s.Unheld != "") })
	status("card_account", "1 if the GPU's driver tells how long it works for the vGPU's processes, so that counted time is checked.", prometheus.GaugeValue, func(s *api.Status) float64 { return flag(s.Card.Known) })
	status("card_seconds_total", "Time in which the GPU worked for the vGPU, by its driver's account.", prometheus.CounterValue, func(s *api.Status) float64 { return seconds(s.Card.Nanos) })
	status("card_charged_seconds_total", "Time charged by the driver's account because far less was counted.", prometheus.CounterValue, func(s *api.Status) float64 { return seconds(s.Card.Charged) })
	status("precopy_bytes_total", "GPU memory that went ahead of the VM to other hosts, as it travelled.", prometheus.CounterValue, func(s *api.Status) float64 { return float64(s.Copied) })
	status("precopy_saved_bytes_total", "By how many bytes compression made less of what went ahead of the VM.", prometheus.CounterValue, func(s *api.Status) float64 { return float64(s.CopySaved) })
	status("precopy_throttle_ratio", "For what part of the time programs are held back so that a pre-copy comes to an end.", prometheus.GaugeValue, func(s *api.Status) float64 {
		if s.Copy == nil {
			return 0
		}
		return float64(s.Copy.Throttled) / 100
	})
	status("precopy_left_bytes", "GPU memory that changed before the last round of a pre-copy and was sent in it; 0 without one.", prometheus.GaugeValue, func(s *api.Status) float64 {
		if s.Copy == nil {
			return 0
		}
		return float64(s.Copy.Sent)
	})
	count("calls_total", "Calls consumed.", func(c *api.Counters) float64 { return float64(c.Calls) })
	count("calls_failed_total", "Calls that failed.", func(c *api.Counters) float64 { return float64(c.FailedCalls) })
	count("launches_total", "Kernels launched.", func(c *api.Counters) float64 { return float64(c.Launches) })
	count("copied_in_bytes_total", "Bytes copied to the GPU.", func(c *api.Counters) float64 { return float64(c.BytesIn) })
	count("copied_out_bytes_total", "Bytes copied from the GPU.", func(c *api.Counters) float64 { return float64(c.BytesOut) })
	count("busy_seconds_total", "Time in which the GPU had work of the vGPU, summed over its sessions.", func(c *api.Counters) float64 { return seconds(c.BusyNanos) })
	count("wait_seconds_total", "Time in which work was held back for the sake of limits, summed over its sessions.", func(c *api.Counters) float64 { return seconds(c.WaitNanos) })
	count("worker_cpu_seconds_total", "CPU time of the vGPU's workers.", func(c *api.Counters) float64 { return seconds(c.WorkerNanos) })
	count("oom_total", "Allocations refused by the memory limit.", func(c *api.Counters) float64 { return float64(c.OutOfMemory) })
	count("host_memory_refused_total", "Requests refused by the budget of the host's memory.", func(c *api.Counters) float64 { return float64(c.HostRefused) })
	count("managed_in_bytes_total", "Bytes of managed memory that moved to the GPU because it had not room for all of it.", func(c *api.Counters) float64 { return float64(c.ManagedIn) })
	count("managed_out_bytes_total", "Bytes of managed memory that moved to the guest because the GPU had not room for all of it.", func(c *api.Counters) float64 { return float64(c.ManagedOut) })
	count("managed_evictions_total", "Pieces of managed memory that left the GPU for lack of room.", func(c *api.Counters) float64 { return float64(c.Evicted) })
	status("managed_in_guest_bytes", "Managed memory that lies in the guest, or on a GPU server in that host's memory, for lack of room at the GPU, reached over the link.", prometheus.GaugeValue, func(s *api.Status) float64 {
		here := 0.0
		for i := range s.Sessions {
			here += float64(s.Sessions[i].ManagedHere)
		}
		return here
	})
	return list
}

// sum is what a vGPU's sessions count together, with those that have ended.
func sum(s *api.Status) *api.Counters {
	c := s.Past
	for i := range s.Sessions {
		c.Add(s.Sessions[i].Counters)
	}
	return &c
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.gpus {
		ch <- m.desc
	}
	for _, m := range c.vgpus {
		ch <- m.desc
	}
	for _, d := range []*prometheus.Desc{c.gpuInfo, c.vgpuInfo, c.vgpuServer, c.vgpuState, c.build, c.started, c.requests, c.restarts, c.schedulerUp, c.certificate, c.port, c.failed} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, valid(labels)...)
	}
	gpus, err := c.src.GPUs(ctx)
	c.note(gauge, "gpus", err)
	for i := range gpus {
		g := &gpus[i]
		gauge(c.gpuInfo, 1, g.ID, strconv.Itoa(g.Index), g.Backend, g.Name, g.Driver)
		send(ch, c.gpus, g, g.ID)
	}
	vgpus, err := c.src.VGPUs(ctx)
	c.note(gauge, "vgpus", err)
	for i := range vgpus {
		v := &vgpus[i]
		for _, s := range []api.State{api.Waiting, api.Connected, api.Lost} {
			gauge(c.vgpuState, flag(v.State == s), v.Spec.VM, v.Spec.Name, v.GPU, string(s))
		}
		if v.Status != nil {
			gauge(c.vgpuInfo, 1, v.Spec.VM, v.Spec.Name, v.GPU, v.Status.Version)
		}
		if v.Upstream != nil || v.Spec.Lease != "" {
			server := ""
			if v.Upstream != nil {
				server = v.Upstream.Server
			}
			gauge(c.vgpuServer, 1, v.Spec.VM, v.Spec.Name, server, v.Spec.Lease)
		}
		send(ch, c.vgpus, v, v.Spec.VM, v.Spec.Name, v.GPU)
	}
	ver, n := c.src.Version(), c.src.Counts()
	gauge(c.build, 1, ver.Version)
	gauge(c.started, float64(ver.Started.UnixMilli())/1000)
	gauge(c.schedulerUp, flag(n.SchedulerUp))
	for _, p := range ver.Ports {
		gauge(c.port, flag(p.Error == ""), p.Key)
	}
	if end, needed := c.src.Certificate(); needed {
		at := 0.0
		if !end.IsZero() {
			at = float64(end.Unix())
		}
		gauge(c.certificate, at)
	}
	for result, v := range map[string]uint64{"ok": n.OK, "failed": n.Failed, "refused": n.Refused} {
		ch <- prometheus.MustNewConstMetric(c.requests, prometheus.CounterValue, float64(v), result)
	}
	ch <- prometheus.MustNewConstMetric(c.restarts, prometheus.CounterValue, float64(n.SchedulerRestarts))
}

// note says whether something could be read: what can be told is told all the same.
func (c *Collector) note(gauge func(*prometheus.Desc, float64, ...string), what string, err error) {
	gauge(c.failed, flag(err != nil), what)
	if err != nil {
		c.log.Warn("not told to Prometheus", "what", what, "error", err)
	}
}

func send[T any](ch chan<- prometheus.Metric, list []metric[T], of *T, labels ...string) {
	labels = valid(labels)
	for _, m := range list {
		if v, known := m.of(of); known {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, v, labels...)
		}
	}
}

// valid: labels are UTF-8, whatever a driver or device process says.
func valid(labels []string) []string {
	out := make([]string, len(labels))
	for i, l := range labels {
		out[i] = strings.ToValidUTF8(l, "?")
	}
	return out
}
