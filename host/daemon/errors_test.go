package daemon

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"causeway/host/api"
)

// TestEndedDevice: that a device process is gone is not said of causewayd.
func TestEndedDevice(t *testing.T) {
	e := asError(fmt.Errorf("limits: %w", api.ErrNotRunning))
	if e.Status != http.StatusServiceUnavailable || strings.Contains(e.Text, "causewayd") || !strings.Contains(e.Text, "device process") {
		t.Errorf("%+v", e)
	}
}
