package soft_test

import (
	"testing"

	"causeway/host/driver"
	"causeway/host/driver/conformance"
	"causeway/host/driver/soft"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, func(*testing.T) driver.Backend { return soft.New() })
}
