package relay

import "time"

// SetPatience has BEHIND frames wait for less. The session does not run yet.
func (s *Session) SetPatience(d time.Duration) { s.wide.patience = d }
