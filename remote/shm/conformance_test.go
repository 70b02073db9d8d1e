package shm_test

import (
	"testing"

	"causeway/remote/remotetest"
)

// TestConformance is what every carrier must pass.
func TestConformance(t *testing.T) { remotetest.Conformance(t, remotetest.Unix) }
