package soft

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"causeway/cuda"
)

// ofEvents is where ExportMemory puts the times of events: no allocation is there.
const ofEvents = 1<<63 | 1<<62 | 1

// timeEntry is an event's in the table of eventTimes: its id, and nanoseconds before the table was
// made.
const timeEntry = 4 + 8

// eventTimes says when events were recorded, as another process can take it up: nanoseconds since
// 1970 by this host's clock, then an entry for each event that has a time. Nothing if none has one.
// The session is quiescent.
func (s *session) eventTimes() []byte {
	var table []byte
	now := time.Now()
	for id, e := range s.events {
		if e.mark == nil || e.flags&cuda.EventDisableTiming != 0 {
			continue
		}
		if table == nil {
			table = binary.LittleEndian.AppendUint64(nil, uint64(now.UnixNano()))
		}
		table = binary.LittleEndian.AppendUint32(table, id)
		table = binary.LittleEndian.AppendUint64(table, uint64(now.Sub(e.mark.at)))
	}
	return table
}

// setEventTimes takes over the table of eventTimes: elapsed times go on as if the session had not
// moved, with what the hosts' clocks say of the time in between.
func (s *session) setEventTimes(size uint64, r io.Reader) error {
	if size < 8 || (size-8)%timeEntry != 0 || (size-8)/timeEntry > uint64(len(s.events)) {
		return fmt.Errorf("times of events: %d bytes", size)
	}
	table := make([]byte, size)
	if _, err := io.ReadFull(r, table); err != nil {
		return fmt.Errorf("times of events: %w", err)
	}
	made := time.Now()
	if between := made.Sub(time.Unix(0, int64(binary.LittleEndian.Uint64(table)))); between > 0 {
		// Clocks may differ.
		made = made.Add(-between)
	}
	for table = table[8:]; len(table) > 0; table = table[timeEntry:] {
		id := binary.LittleEndian.Uint32(table)
		e, ok := s.events[id]
		if !ok {
			return fmt.Errorf("times of events: there is no event %d", id)
		}
		e.mark = &mark{at: made.Add(-time.Duration(binary.LittleEndian.Uint64(table[4:])))}
	}
	return nil
}
