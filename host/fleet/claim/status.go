package claim

import "k8s.io/apimachinery/pkg/types"

// Sessions is the condition of a claim's device that says whether CUDA processes have sessions with
// it: True or False, by its node's causewayd.
const Sessions = "SessionsOpen"

// Reasons of Sessions.
const (
	NotKnown     = "NotKnown"
	NoSession    = "NoSession"
	HaveSessions = "ProgramsHaveSessions"
	// ProgramsStay: and what one of them has cannot be moved to another host now; the message says
	// what.
	ProgramsStay = "ProgramsStay"
)

// SameShare: two names of a claim's share of a device are one. The API has the same in two types.
func SameShare(inStatus *string, allocated *types.UID) bool {
	if inStatus == nil || allocated == nil {
		return inStatus == nil && allocated == nil
	}
	return *inStatus == string(*allocated)
}
