package remotetest_test

import (
	"testing"

	"causeway/remote/remotetest"
)

func TestConformance(t *testing.T) {
	for name, open := range remotetest.Carriers() {
		t.Run(name, func(t *testing.T) { remotetest.Conformance(t, open) })
	}
}
