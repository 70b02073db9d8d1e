package verbs

import (
	"errors"
	"fmt"
)

// ErrQueue: the connection between the queue pairs has failed. The error is a *QueueError.
var ErrQueue = errors.New("the RDMA connection failed")

// Status is how a work request ended, by libibverbs' numbers (enum ibv_wc_status). Those that are
// not 0 are errors, for errors.Is.
type Status uint32

// What work requests of a reliable connection end with.
const (
	Success          Status = 0
	LocalLength      Status = 1
	LocalOperation   Status = 2
	LocalProtection  Status = 4
	Flushed          Status = 5
	BadResponse      Status = 7
	LocalAccess      Status = 8
	RemoteInvalid    Status = 9
	RemoteAccess     Status = 10
	RemoteOperation  Status = 11
	RetryExceeded    Status = 12
	NotReadyExceeded Status = 13
	RemoteAborted    Status = 17
	Fatal            Status = 19
	General          Status = 21
)

// statusTexts say what happened and, where it is known, why that is.
var statusTexts = map[Status]string{
	Success:          "success",
	LocalLength:      "local length error",
	LocalOperation:   "local queue pair operation error",
	LocalProtection:  "local protection error: the memory is not registered",
	Flushed:          "flushed: the queue pair had failed, or the other end's had",
	BadResponse:      "bad response of the other end",
	LocalAccess:      "local access error: the other end used memory as it may not",
	RemoteInvalid:    "remote invalid request error",
	RemoteAccess:     "remote access error: the memory there is not, or no more, registered for it",
	RemoteOperation:  "remote operation error",
	RetryExceeded:    "retry exceeded: the other end, or the way to it, is gone",
	NotReadyExceeded: "receiver not ready, retry exceeded",
	RemoteAborted:    "remote aborted",
	Fatal:            "fatal error of the adapter",
	General:          "general error",
}

// Error implements error.
func (s Status) Error() string {
	if text, ok := statusTexts[s]; ok {
		return text
	}
	return fmt.Sprintf("status %d", uint32(s))
}

// QueueError says why a connection failed: the first failure that is no consequence of another, as
// far as this end was told of one.
type QueueError struct {
	Status Status
	Vendor uint32
}

// Error implements error.
func (e *QueueError) Error() string {
	if e.Vendor != 0 {
		return fmt.Sprintf("%v: %v (vendor error %#x)", ErrQueue, e.Status, e.Vendor)
	}
	return fmt.Sprintf("%v: %v", ErrQueue, e.Status)
}

// Unwrap has errors.Is find ErrQueue, and the Status.
func (e *QueueError) Unwrap() []error { return []error{ErrQueue, e.Status} }
