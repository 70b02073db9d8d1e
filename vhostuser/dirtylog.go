package vhostuser

// MarkDirty records that [gpa, gpa+size) was written, for a migration. It costs one load while no
// log is enabled. Call it after the write.
func (m *Memory) MarkDirty(gpa, size uint64) {
	if !m.logging.Load() {
		return
	}
	m.logMu.RLock()
	if m.log != nil {
		m.log.mark(gpa, size)
	}
	m.logMu.RUnlock()
}

// Logging says whether the front end collects dirty pages (VHOST_F_LOG_ALL): a migration probably
// started.
func (m *Memory) Logging() bool { return m.logging.Load() }

// StartLog marks pages in the bitmap that fd holds at offset, until StopLog. fd stays the caller's.
// Servers do this themselves: it is for users without one.
func (m *Memory) StartLog(fd int, size, offset uint64) error {
	l, err := mapDirtyLog(fd, size, offset)
	if err != nil {
		return err
	}
	m.setLog(l)
	m.logging.Store(true)
	return nil
}

// StopLog ends StartLog.
func (m *Memory) StopLog() {
	m.logging.Store(false)
	m.setLog(nil)
}

// setLog replaces the log; nil removes it.
func (m *Memory) setLog(l *dirtyLog) {
	m.logMu.Lock()
	old := m.log
	m.log = l
	m.logMu.Unlock()
	if old != nil {
		old.unmap()
	}
}
