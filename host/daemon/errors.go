package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/host/daemon/place"
)

// refuse is an error of the API.
func refuse(status int, remedy, format string, args ...any) error {
	return &api.Error{Status: status, Text: fmt.Sprintf(format, args...), Remedy: remedy}
}

// silence is the error of a device process that lives and does not answer.
type silence struct{ error }

func (s silence) Unwrap() error { return s.error }

// silent says that a vGPU's device process lives and does not answer: what it does, and whether a
// VM uses it, is not known.
func silent(key string) error {
	return silence{refuse(http.StatusConflict, fmt.Sprintf("`causeway logs %s` may say why; `causeway delete --force %[1]s` ends it, whether a VM uses it or not", key),
		"the device process of %s does not answer", key)}
}

// asError makes an error of the API of any error.
func asError(err error) *api.Error {
	var e *api.Error
	switch {
	case errors.As(err, &e):
		if e.Status == 0 {
			e.Status = http.StatusInternalServerError
		}
		return e
	case errors.Is(err, place.ErrWish):
		return &api.Error{Status: http.StatusBadRequest, Text: err.Error(), Remedy: "see `causeway gpus`"}
	case errors.Is(err, place.ErrNoGPU):
		return &api.Error{Status: http.StatusNotFound, Text: err.Error(), Remedy: "see `causeway gpus`"}
	case errors.Is(err, place.ErrDrained):
		return &api.Error{Status: http.StatusConflict, Text: err.Error(), Remedy: "when it is well again, `causeway gpus resume GPU`"}
	case errors.Is(err, place.ErrNoRoom):
		return &api.Error{Status: http.StatusInsufficientStorage, Text: err.Error(), Remedy: "ask for less memory, detach a vGPU, or raise placement.overcommit"}
	case errors.Is(err, lease.ErrUnknown):
		return &api.Error{Status: http.StatusGone, Text: err.Error(), Remedy: "it has ended, or the server was started anew: its host leases the vGPU again by itself when no program of before is left"}
	case errors.Is(err, lease.ErrEpoch):
		return &api.Error{Status: http.StatusPreconditionFailed, Text: err.Error()}
	case errors.Is(err, lease.ErrEnded):
		return &api.Error{Status: http.StatusPreconditionFailed, Text: err.Error(), Remedy: "delete or detach the vGPU, and make it again"}
	case errors.Is(err, lease.ErrMoved):
		return &api.Error{Status: http.StatusPreconditionFailed, Text: err.Error()}
	case errors.Is(err, lease.ErrController), errors.Is(err, lease.ErrChanged):
		return &api.Error{Status: http.StatusPreconditionFailed, Text: err.Error()}
	case errors.Is(err, lease.ErrMost), errors.Is(err, lease.ErrReserved):
		return &api.Error{Status: http.StatusTooManyRequests, Text: err.Error(), Remedy: "end some, or use another GPU server"}
	case errors.Is(err, lease.ErrMessage):
		return &api.Error{Status: http.StatusBadRequest, Text: err.Error()}
	case errors.Is(err, api.ErrNotRunning): // what causewayd asks is a device process
		return &api.Error{Status: http.StatusServiceUnavailable, Text: "the vGPU's device process has just ended", Remedy: "try again in a moment; `causeway logs` says why it ended"}
	case errors.Is(err, api.ErrName), errors.Is(err, api.ErrLimit):
		return &api.Error{Status: http.StatusBadRequest, Text: err.Error()}
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		return &api.Error{Status: http.StatusInsufficientStorage, Text: err.Error(), Remedy: "make room on that file system; nothing was changed"}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &api.Error{Status: http.StatusServiceUnavailable, Text: "it took too long, or causewayd is ending: " + err.Error(), Remedy: "try again"}
	}
	return &api.Error{Status: http.StatusInternalServerError, Text: err.Error()}
}
