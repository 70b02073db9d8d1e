// Package lease is the fleet's controller, for one GPU host: what claims have of it is reserved
// there before their pods are bound, and ends there when they have it no more. It keeps nothing of
// its own. Each pass compares the claims of the API server with the host's heartbeat, and does what
// is missing, so that whatever was cut short is done by the next pass, or by the next controller.
package lease
