// Package publish says of a node's GPUs what the scheduler has to know: a device for each, which
// many claims may share, with amounts that the scheduler counts.
package publish
