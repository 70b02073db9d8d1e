// Package systemd is what causewayd uses of a host that was booted with systemd: scopes, so that a
// stop or restart of causewayd's service touches nothing that it started, and the journal, for what
// device processes say.
package systemd

import "github.com/coreos/go-systemd/v22/util"

// Booted reports whether the host was booted with systemd (sd_booted(3)).
func Booted() bool { return util.IsRunningSystemd() }
