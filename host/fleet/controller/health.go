package controller

import (
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/leaderelection"
)

// Health answers for a controller: whether it lives, and whether it is ready to lead or does.
type Health struct {
	watchdog *leaderelection.HealthzAdaptor
	elector  atomic.Pointer[leaderelection.LeaderElector]
	working  atomic.Uint64 // as what it leads, and knows what there is
}

// tardy is how long after the end of its time a controller may still believe that it leads before
// it is taken for one that hangs.
const tardy = 20 * time.Second

// NewHealth is one of a controller that has not begun.
func NewHealth() *Health {
	return &Health{watchdog: leaderelection.NewLeaderHealthzAdaptor(tardy)}
}

func (h *Health) elects(e *leaderelection.LeaderElector) { h.elector.Store(e) }
func (h *Health) works(epoch uint64)                     { h.working.Store(epoch) }
func (h *Health) ended(epoch uint64)                     { h.working.CompareAndSwap(epoch, 0) }

// Why a controller is not ready.
var (
	errNotHeard = errors.New("who leads the fleet is not known yet: the API server has not answered")
	errBegins   = errors.New("it leads, and does not know all claims and hosts yet")
)

// Ready: it knows of a leader, and if it is the one it knows what there is.
func (h *Health) Ready() error {
	e := h.elector.Load()
	switch {
	case e == nil || e.GetLeader() == "":
		return errNotHeard
	case e.IsLeader() && h.working.Load() == 0:
		return errBegins
	}
	return nil
}

// Register has it answer at /healthz and /readyz.
func (h *Health) Register(mux *http.ServeMux) {
	answer := func(path string, ask func(*http.Request) error) {
		mux.HandleFunc("GET "+path, func(to http.ResponseWriter, r *http.Request) {
			if err := ask(r); err != nil {
				http.Error(to, err.Error(), http.StatusServiceUnavailable)
			}
		})
	}
	answer("/healthz", h.watchdog.Check)
	answer("/readyz", func(*http.Request) error { return h.Ready() })
}
