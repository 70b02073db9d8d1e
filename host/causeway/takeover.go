//go:build takeover

package main

import (
	"os"

	"causeway/host/driver"
	"causeway/host/sandbox/takeover"
)

// takenOver has the worker run an attacker's code once its guest has shaken hands, and then go on
// as if nothing had happened.
func takenOver(find func(string) (driver.Backend, error)) func(string) (driver.Backend, error) {
	return func(name string) (driver.Backend, error) {
		if err := takeover.FromEnv(os.Stderr); err != nil {
			return nil, err
		}
		return find(name)
	}
}
